# SPDX-License-Identifier: Apache-2.0
"""install: make programs that import flash-attn or FlashAttention-3 use this package."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from flash_attention.after_import import AfterImport
from flash_attention.compat import bert_padding, flash_attn, flash_attn_3
from flash_attention.errors import UnsupportedError

HERE = "flash.attention"  # the local part of the versions, which names this package
VERSION = f"2.8.3+{HERE}"
VERSION_3 = f"3.0.0+{HERE}"
MODULES = {
    "flash_attn": flash_attn,
    "flash_attn.flash_attn_interface": flash_attn,
    "flash_attn.bert_padding": bert_padding,
    "flash_attn_interface": flash_attn_3,
}
"""The modules of other packages, and the modules here that provide their functions."""
ASKING = "transformers.modeling_flash_attention_utils"


def install(*, replace: bool = False) -> None:
    """Make `import flash_attn` and FlashAttention-3's `import flash_attn_interface` import the
    functions of `compat.flash_attn`, `compat.bert_padding` and `compat.flash_attn_3`.

    Their `__version__` and the version in their metadata is the one whose parameters the functions
    have, with this package in the local part. transformers then accepts
    attn_implementation="flash_attention_2", also without a GPU. Functions that were imported before
    are not changed.

    With `replace`, the modules replace the real packages if these are installed. Without it,
    UnsupportedError is raised in that case.
    """
    if _installed is not None:
        return
    found = {name: spec for name in _packages() if (spec := _spec(name)) is not None}
    if found and not replace:
        name, origin = next(iter(found.items()))
        raise UnsupportedError(
            f"{name} is installed, {origin}; uninstall it, or call install(replace=True) to have"
            " its functions computed here"
        )
    _install()


def uninstall() -> None:
    """Undo `install`. Later imports find the original modules again."""
    global _installed
    if _installed is not None:
        _installed.close()
        _installed = None


_installed: ExitStack | None = None  # closing it undoes `install`


def _install() -> None:
    global _installed
    undo = _installed = ExitStack()
    for name in [n for n in sys.modules if n.split(".")[0] in _packages()]:
        undo.callback(sys.modules.__setitem__, name, sys.modules.pop(name))
    _change(undo, sys.modules, {name: _alias(name, source) for name, source in MODULES.items()})
    for name in MODULES:
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    finder = _Finder(ASKING, _tell_if_installed)
    sys.meta_path.insert(0, finder)
    undo.callback(sys.meta_path.remove, finder)
    if ASKING in sys.modules:
        _tell_transformers(undo)


def _packages() -> set[str]:
    return {name.split(".")[0] for name in MODULES}


def _spec(name: str) -> str | None:
    """Say where a module that is not ours was found, or return None."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a spec, which the program made itself
        return "made by this program"
    return None if spec is None else f"at {spec.origin or spec.submodule_search_locations}"


def _alias(name: str, source: ModuleType) -> ModuleType:
    """Make a module with the public functions of another."""
    module = ModuleType(name, source.__doc__)
    package = name == "flash_attn"
    spec = ModuleSpec(name, None, origin=source.__file__, is_package=package)
    vars(module).update(
        {public: getattr(source, public) for public in source.__all__},
        __all__=source.__all__,
        __file__=source.__file__,
        __spec__=spec,
        __version__=VERSION_3 if source is flash_attn_3 else VERSION,
    )
    if package:
        module.__path__ = []
    return module


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a package that is not installed and whose functions are provided here."""

    def __init__(self, name: str, version: str, module: str) -> None:
        self.module = module
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            "Summary: its functions, computed by flash_attention\n",
            "top_level.txt": f"{module}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return Path(__file__).parent / path


DISTRIBUTIONS = {
    "flash-attn": _Distribution("flash-attn", VERSION, "flash_attn"),
    "flash-attn-3": _Distribution("flash-attn-3", VERSION_3, "flash_attn_interface"),
}


class _Finder(AfterImport):
    """An import hook that finds the metadata and patches transformers when it is imported."""

    def find_distributions(self, context: Any) -> Iterable[_Distribution]:
        if context.name is None:
            return DISTRIBUTIONS.values()
        name = re.sub(r"[-_.]+", "-", context.name).lower()
        return [DISTRIBUTIONS[name]] if name in DISTRIBUTIONS else []


def _tell_if_installed(_: ModuleType) -> None:
    if _installed is not None:
        _tell_transformers(_installed)


def _tell_transformers(undo: ExitStack) -> None:
    """Make transformers look again which packages are installed, since it caches the answers.

    It also assumes that flash-attn needs a GPU. The functions here do not.
    """
    flash, utils = sys.modules[ASKING], sys.modules["transformers.utils.import_utils"]
    found = {d.module: [name] for name, d in DISTRIBUTIONS.items()}
    _change(undo, getattr(utils, "PACKAGE_DISTRIBUTION_MAPPING", {}), found)
    undo.callback(_forget_answers, flash, utils)
    _forget_answers(flash, utils)
    if not torch.cuda.is_available():
        yes = {"is_flash_attn_2_available": _yes}
        for module in (flash, utils, sys.modules["transformers.utils"]):
            _change(undo, vars(module), yes)
        asked = getattr(flash, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {}).get(2, {})
        devices = (*asked.get("supported_devices", ()), (_yes, "cpu"))
        _change(undo, asked, {"general_availability_check": _yes, "supported_devices": devices})


def _yes(*_: object, **__: object) -> bool:
    return True


def _forget_answers(flash: ModuleType, utils: ModuleType) -> None:
    vars(flash)["_loaded_implementation"] = None
    for name, function in vars(utils).items():
        if "flash_attn" in name and hasattr(function, "cache_clear"):
            function.cache_clear()


def _change(undo: ExitStack, entries: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Put new entries into a dictionary, and register how to undo that."""
    for name, value in new.items():
        if name in entries:
            undo.callback(entries.__setitem__, name, entries[name])
        else:
            undo.callback(entries.pop, name, None)
        entries[name] = value

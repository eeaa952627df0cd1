# SPDX-License-Identifier: Apache-2.0
"""install: make programs that import flash-attn or FlashAttention-3 use this package."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from flash_attention.after_import import AfterImport
from flash_attention.compat import (
    bert_padding,
    flash_attn,
    flash_attn_2_cuda,
    flash_attn_3,
    flash_attn_3_passes,
    flash_attn_passes,
    mha,
    rotary_layers,
)
from flash_attention.compat.transformers_answers import TOLD
from flash_attention.errors import UnsupportedError

HERE = "flash.attention"  # the local part of the versions, which names this package
VERSION = f"2.8.3+{HERE}"
VERSION_3 = f"3.0.0+{HERE}"


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


PASSES = {
    f"{prefix}_{name}": function
    for name, function in _public(flash_attn_passes).items()
    for prefix in ("", "_wrapped")
}
INTERFACE_3 = _public(flash_attn_3) | {
    f"_{name}": function for name, function in _public(flash_attn_3_passes).items()
}
MODULES: dict[str, dict[str, Any]] = {
    "flash_attn": _public(flash_attn),
    "flash_attn.bert_padding": _public(bert_padding),
    "flash_attn.flash_attn_interface": _public(flash_attn) | PASSES,
    "flash_attn.layers": {},
    "flash_attn.layers.rotary": _public(rotary_layers)
    | {"apply_rotary_emb_func": rotary_layers.apply_rotary_emb},
    "flash_attn.modules": {},
    "flash_attn.modules.mha": _public(mha) | {"__getattr__": mha.__getattr__},
    "flash_attn.ops": {},
    "flash_attn.ops.triton": {},
    "flash_attn.ops.triton.rotary": {"apply_rotary": rotary_layers.apply_rotary},
    "flash_attn_2_cuda": _public(flash_attn_2_cuda),
    "flash_attn_3": {},
    "flash_attn_3.flash_attn_interface": INTERFACE_3,
    "flash_attn_interface": INTERFACE_3,
}
"""The modules of other packages that are found here, and what is in them, by name."""

LAYERS = "flash_attn.modules"
"""Modules that stay those of an installed package, because they have more classes there, which call
functions of the modules above."""

PROVIDERS = {
    "flash_attn.cute": "flash-attn-4",
    "flash_attn": "flash-attn",
    "flash_attn_2_cuda": "flash-attn",
    "flash_attn_3": "flash-attn-3",
    "flash_attn_interface": "flash-attn-3",
}
"""Which package has the modules below a name that are not found here."""


def install(*, replace: bool = False) -> None:
    """Make `import flash_attn` and FlashAttention-3's `import flash_attn_interface` import the
    functions of `compat.flash_attn`, `compat.bert_padding`, `compat.flash_attn_3`,
    `compat.flash_attn_passes`, `compat.flash_attn_3_passes`, `compat.flash_attn_2_cuda`,
    `compat.mha` and `compat.rotary_layers`, and add the operators torch.ops.flash_attn_3.fwd and
    .bwd.

    Their `__version__` and the version in their metadata is the one whose parameters the functions
    have, with this package in the local part. transformers then accepts
    attn_implementation="flash_attention_2", also without a GPU. Functions that were imported before
    are not changed. Other modules of these packages raise ModuleNotFoundError, and the message says
    which package has them.

    With `replace`, the modules replace those of the real packages if these are installed, and their
    other modules stay. Without it, UnsupportedError is raised in that case.
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
    undo.callback(sys.modules.update, _modules())
    undo.callback(_forget_modules)
    _forget_modules()
    real = PathFinder.find_spec("flash_attn") is not None
    for name, names in MODULES.items():
        if not (real and name.startswith(LAYERS)):
            _add(name, names)
    undo.callback(flash_attn_3_passes.add_operators()._destroy)
    first, last = _Finder({name: partial(_tell, name) for name in TOLD}), _LastFinder()
    sys.meta_path[:] = [first, *sys.meta_path, last]
    for finder in (first, last):
        undo.callback(sys.meta_path.remove, finder)
    for name, tell in TOLD.items():
        if name in sys.modules:
            tell(undo, _found())


def _packages() -> list[str]:
    return [name for name in MODULES if "." not in name]


def _modules() -> dict[str, ModuleType]:
    """The modules of the packages that are imported."""
    return {n: m for n, m in sys.modules.items() if n.split(".")[0] in _packages()}


def _forget_modules() -> None:
    for name in _modules():
        del sys.modules[name]


def _spec(name: str) -> str | None:
    """Say where a module that is not ours was found, or return None."""
    try:
        spec = find_spec(name)
    except ValueError:  # a module without a spec, which the program made itself
        return "made by this program"
    return None if spec is None else f"at {spec.origin or spec.submodule_search_locations}"


def _add(name: str, names: Mapping[str, Any]) -> None:
    """Make a module with these names. Its package comes first in MODULES."""
    module = ModuleType(name, f"{name}, whose functions are those of flash_attention.compat.")
    parent, _, child = name.rpartition(".")
    is_package = any(other.startswith(f"{name}.") for other in MODULES) or not names
    vars(module).update(
        names,
        __all__=[public for public in names if not public.startswith("_")],
        __file__=__file__,
        __spec__=ModuleSpec(name, None, origin=__file__, is_package=is_package),
        __version__=VERSION_3 if PROVIDERS.get(name.split(".")[0]) == "flash-attn-3" else VERSION,
    )
    if is_package:  # of a package that is installed, other modules are found too
        within = sys.modules[parent].__path__ if parent else None
        real = PathFinder.find_spec(name, within)
        module.__path__ = list(real.submodule_search_locations or ()) if real else []
    if parent:
        setattr(sys.modules[parent], child, module)
    sys.modules[name] = module


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a package that is not installed and whose functions are provided here."""

    def __init__(self, name: str, version: str, *modules: str) -> None:
        self.modules = modules
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            "Summary: its functions, computed by flash_attention\n",
            "top_level.txt": "".join(f"{module}\n" for module in modules),
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return Path(__file__).parent / path


DISTRIBUTIONS = {
    "flash-attn": _Distribution("flash-attn", VERSION, "flash_attn", "flash_attn_2_cuda"),
    "flash-attn-3": _Distribution(
        "flash-attn-3", VERSION_3, "flash_attn_3", "flash_attn_interface"
    ),
}


def _found() -> dict[str, list[str]]:
    """The modules of the packages, each with the name of its package."""
    return {module: [name] for name, d in DISTRIBUTIONS.items() for module in d.modules}


def _tell(name: str, _: ModuleType) -> None:
    if _installed is not None:
        TOLD[name](_installed, _found())


class _Finder(AfterImport):
    """An import hook before all others. It finds the metadata, and tells transformers about them
    when it is imported."""

    def find_distributions(self, context: Any) -> Iterable[_Distribution]:
        if context.name is None:
            return DISTRIBUTIONS.values()
        name = re.sub(r"[-_.]+", "-", context.name).lower()
        return [DISTRIBUTIONS[name]] if name in DISTRIBUTIONS else []


class _LastFinder:
    """An import hook behind all others. It says who has a module that nobody found."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> None:
        provider = next((p for m, p in PROVIDERS.items() if f"{name}.".startswith(f"{m}.")), None)
        # An import asks through two functions of importlib. importlib.util.find_spec, with which
        # programs look whether a module is there, gets the answer that it is not.
        if provider is None or sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
            return
        raise ModuleNotFoundError(
            f"{name} is in the package {provider}, and flash_attention.compat.install() provides"
            f" only modules of attention, {', '.join(MODULES)}; install {provider}, and call"
            " flash_attention.compat.install(replace=True), which keeps its other modules",
            name=name,
        )

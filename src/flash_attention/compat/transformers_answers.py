# SPDX-License-Identifier: Apache-2.0
"""What transformers believes of flash-attn after `install`: it is there, and runs on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from types import ModuleType
from typing import Any

import torch

VERSIONS = (2, 3)  # of flash-attn, whose functions are provided


def change(undo: ExitStack, entries: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Put new entries into a dictionary, and register how to undo that."""
    for name, value in new.items():
        if name in entries:
            undo.callback(entries.__setitem__, name, entries[name])
        else:
            undo.callback(entries.pop, name, None)
        entries[name] = value


def _tell_packages(undo: ExitStack, found: Mapping[str, list[str]]) -> None:
    """Make transformers look again which packages are installed, since it caches the answers.

    It also assumes that flash-attn needs a GPU. The functions here do not.
    """
    flash, utils = sys.modules[PACKAGES], sys.modules["transformers.utils.import_utils"]
    change(undo, getattr(utils, "PACKAGE_DISTRIBUTION_MAPPING", {}), found)
    undo.callback(_forget_answers, flash, utils)
    _forget_answers(flash, utils)
    if not torch.cuda.is_available():
        for version in VERSIONS:
            asked = f"is_flash_attn_{version}_available"
            original = getattr(utils, asked)
            undo.callback(_replace_answer, asked, _yes, original)
            _replace_answer(asked, original, _yes)
            rules = getattr(flash, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {}).get(version, {})
            devices = (*rules.get("supported_devices", ()), (_yes, "cpu"))
            change(undo, rules, {"general_availability_check": _yes, "supported_devices": devices})


def _tell_devices(undo: ExitStack, found: Mapping[str, list[str]]) -> None:
    """Make transformers 4 accept a model on the CPU, where there is no GPU. It checks the device of
    a model only when the model is made."""
    model = sys.modules[MODELS].PreTrainedModel
    for version in VERSIONS:
        check = getattr(model, f"_flash_attn_{version}_can_dispatch", None)
        if check is not None and not torch.cuda.is_available():
            undo.callback(setattr, model, check.__name__, check)
            setattr(model, check.__name__, _as_when_made(check))


def _as_when_made(check: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(check)
    def checked(self: Any, is_init_check: bool = False) -> Any:
        return check(self, is_init_check=True)

    return checked


PACKAGES = "transformers.modeling_flash_attention_utils"
MODELS = "transformers.modeling_utils"
TOLD: dict[str, Callable[[ExitStack, Mapping[str, list[str]]], None]] = {
    PACKAGES: _tell_packages,
    MODELS: _tell_devices,
}
"""The modules of transformers that ask, and how each is told once it is imported. `found` has the
names of the packages that a module belongs to."""


def _yes(*_: object, **__: object) -> bool:
    return True


def _replace_answer(asked: str, old: object, new: object) -> None:
    """Replace a function in all modules that have imported it."""
    for module in [m for name, m in sys.modules.items() if name.split(".")[0] == "transformers"]:
        if vars(module).get(asked) is old:
            setattr(module, asked, new)


def _forget_answers(flash: ModuleType, utils: ModuleType) -> None:
    vars(flash)["_loaded_implementation"] = None
    for name, function in vars(utils).items():
        if "flash_attn" in name and hasattr(function, "cache_clear"):
            function.cache_clear()

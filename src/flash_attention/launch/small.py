# SPDX-License-Identifier: Apache-2.0
"""Kernels without a config, run on a CUDA device or in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import increment_version

from flash_attention.arch import DEFAULT_ARCH
from flash_attention.families.recipe import Recipe
from flash_attention.launch.device import CPU, device_arch
from flash_attention.launch.launcher import Launcher

MAX_KNOWN = 8192  # beyond that all are dropped, for programs whose shapes keep changing


class _Known(NamedTuple):
    """A recipe whose arguments hold the addresses of tensors by name, and what launches it."""

    recipe: Recipe
    launcher: Launcher
    template: bytes  # the arguments without addresses


_known: dict[tuple[object, ...], _Known] = {}


def run_small(
    key: tuple[object, ...],
    device_index: int,
    recipe_for: Callable[[str], Recipe],
    tensors: Mapping[str, Tensor],
    written: Sequence[str],
    **numbers: int,
) -> None:
    """Run the kernels of a recipe. For a new key, `recipe_for` makes it for a target of the
    compiler. `written` are the names of tensors that the kernels write, and `numbers` the arguments
    that differ between calls with one key."""
    known = _known.get(key)
    if known is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        arch = DEFAULT_ARCH if device_index == CPU else device_arch(device_index)
        recipe = recipe_for(arch.name)
        known = _Known(recipe, Launcher(recipe, device_index), bytes(recipe.arguments))
        _known[key] = known
    recipe, launcher, template = known
    arguments = type(recipe.arguments).from_buffer_copy(template)
    for name, number in numbers.items():
        setattr(arguments, name, number)
    if device_index == CPU:
        from flash_attention.launch.emulation import emulate_small  # loaded when used

        return emulate_small(recipe, arguments, tensors, written)
    for name, tensor in tensors.items():
        setattr(arguments, name, tensor.data_ptr())
    if not launcher.loaded:
        launcher.load()
    for name in written:
        if not tensors[name].is_inference():
            increment_version(tensors[name])
    launcher.launch(arguments)

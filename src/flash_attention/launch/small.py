# SPDX-License-Identifier: Apache-2.0
"""SmallPlan: runs a kernel without a config, on a CUDA device or in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch.autograd.graph import increment_version

from flash_attention.arch import DEFAULT_ARCH
from flash_attention.families.recipe import Recipe
from flash_attention.launch.device import CPU, device_arch
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plans import Plans


class SmallPlan:
    """How to run a recipe whose arguments hold the addresses of tensors by name."""

    def __init__(self, recipe: Recipe, device_index: int) -> None:
        self.recipe = recipe
        self._index = device_index
        self._launcher = Launcher(recipe, device_index)
        self._template = bytes(recipe.arguments)

    def run(self, tensors: Mapping[str, Tensor], written: Sequence[str], **numbers: int) -> None:
        """Run the kernels. `written` are the names of tensors that they write, and `numbers` the
        arguments that differ between calls."""
        arguments = type(self.recipe.arguments).from_buffer_copy(self._template)
        for name, number in numbers.items():
            setattr(arguments, name, number)
        if self._index == CPU:
            from flash_attention.launch.emulation import emulate_small  # loaded when used

            return emulate_small(self.recipe, arguments, tensors, written)
        for name, tensor in tensors.items():
            setattr(arguments, name, tensor.data_ptr())
        if not self._launcher.loaded:
            self._launcher.load()
        for name in written:
            if not tensors[name].is_inference():
                increment_version(tensors[name])
        self._launcher.launch(arguments)


_plans: Plans[SmallPlan] = Plans()


def small_plan(
    key: tuple[object, ...], device_index: int, recipe_for: Callable[[str], Recipe]
) -> SmallPlan:
    """Return the plan of a key. For a new one, `recipe_for` makes the recipe for a target of the
    compiler."""
    plan = _plans.get(key)
    if plan is None:
        arch = DEFAULT_ARCH if device_index == CPU else device_arch(device_index)
        plan = SmallPlan(recipe_for(arch.name), device_index)
        _plans.add(key, plan)
    return plan

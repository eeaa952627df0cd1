# SPDX-License-Identifier: Apache-2.0
"""Parse short forms and kernel names into configs."""

from __future__ import annotations

import re

from flash_attention.errors import KernelConfigError, quoted
from flash_attention.families.backward_steps import BackwardStep, parse_step_name
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.registry import FAMILIES
from flash_attention.families.sm90.forward.combine import CombineConfig, parse_combine_name
from flash_attention.families.sm90.fp8.transpose import TransposeConfig, parse_transpose_name
from flash_attention.families.small_kernels import SmallKernel, parse_small_name

_KERNEL = re.compile(
    r"flash_(?:forward_kernel_|backward_(?:kernel_)?|(combine_|transpose_)kernel_)(\w+)"
)
_SHORT_FORM = re.compile(r"([a-z_0-9]*)\s*\(([^()]*)\)\s*:\s*(\S+)")


FORMS = {
    Pass.FORWARD: "'(FP16, 128, 64, 32, 4): async+swizzled+load_2_2_0_tiles'"
    " with (dtype, d_head, B_r, B_c, n_warps), or"
    " 'hopper(FP16, 128, 2, 128, 2): tma+specialised+overlap'"
    " with (dtype, d_head, consumers, B_c, stages)",
    Pass.BACKWARD: "'backward(BF16, 128, 64, 128, 8): swizzled+folded'"
    " with (dtype, d_head, B_r, B_c, n_warps), or"
    " 'hopper_backward(BF16, 128, 64, 128, 2): dq_own_warpgroup+ds_2+rounded+in_place+one_each'"
    " with (dtype, d_head, B_r, B_c, stages)",
    Pass.TANGENT: "'hopper_tangent(BF16, 128, 2, 64, 2): lazy_8+dynamic_32'"
    " with (dtype, d_head, consumers, B_c, stages)",
}
"""Short forms of a config of each family of a pass, and what is in their parentheses."""


def parse_kernel_config(text: str, pass_: Pass = Pass.FORWARD) -> KernelConfig:
    """Return the config with the `short_form()` `text`. Raises KernelConfigError otherwise, which
    shows forms of configs of a pass."""
    if isinstance(text, str) and (match := _SHORT_FORM.fullmatch(text.strip())):
        prefix, tile, words = match.groups()
        for family in FAMILIES:
            if prefix == family.config_type.prefix:
                fields = [word.strip() for word in tile.split(",")]
                config: KernelConfig = family.parse(fields, words.split("+"))
                return config
    raise KernelConfigError(
        f"{quoted(text)} is not a kernel config; the form is {FORMS[pass_]}",
        rule="short_form",
    )


def parse_kernel_name(
    name: str,
) -> KernelConfig | CombineConfig | TransposeConfig | BackwardStep | SmallKernel:
    """Return the config of a kernel, given its name in a profile, in SASS or in the cache folder.

    What a call asks of a kernel, such as "_causal", follows in the name and is left out. Of the
    combine kernel of split-KV, the one that transposes V, the steps of a backward pass, cache
    updates and merges, which have no config, return what they are compiled for.
    """
    if isinstance(name, str) and (small := parse_small_name(name)):
        return small
    found = _KERNEL.search(name) if isinstance(name, str) else None
    rest = (found[1] or "") + found[2] if found else str(name)
    other = parse_combine_name(rest) or parse_transpose_name(rest) or parse_step_name(rest)
    if other is not None:
        return other
    for family in FAMILIES:
        config: KernelConfig | None = family.parse_name(rest)
        if config is not None:
            return config
    raise KernelConfigError(
        f"{quoted(name)} is not the name of a kernel of this package; such a name is "
        "'flash_forward_kernel_fp16_d128_64x32_w4_async_load_2_2_0_tiles'",
        rule="kernel_name",
    )

# SPDX-License-Identifier: Apache-2.0
"""The forms in which a caller may give a kernel config: a config, a short form, another object."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, Protocol, TypeAlias

from flash_attention.call.dtype import DType
from flash_attention.errors import KernelConfigError, one
from flash_attention.families.config import KernelConfig, is_config
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.passes import Pass
from flash_attention.families.registry import check_config_type
from flash_attention.families.sm80.forward.config import FlashForwardKernelConfig


class ThirteenFields(Protocol):
    """An object with all fields of a FlashForwardKernelConfig that need a value.

    `dtype` may be a DType, a torch.dtype, a name, or a member of another enum with that name.
    """  # type checkers look at these; that all thirteen are there is seen when it is read

    dtype: Any
    d_head: int
    B_r: int
    B_c: int
    n_warps: int


GivenConfig: TypeAlias = KernelConfig | str | ThirteenFields
"""The forms of a config that every function accepts. A string is a short form or "rung:5"."""

THIRTEEN = tuple(f.name for f in fields(FlashForwardKernelConfig) if f.default is MISSING)


def read_config(given: object, pass_: Pass = Pass.FORWARD) -> KernelConfig:
    """Return the config that a caller gave in any form but a rung. Errors name configs of a pass,
    and only the forward pass takes objects in place of one."""
    if is_config(given):
        return given
    if isinstance(given, str):
        return parse_kernel_config(given, pass_)
    missing = [name for name in THIRTEEN if isinstance(given, type) or not hasattr(given, name)]
    if len(missing) == len(THIRTEEN) or pass_ is not Pass.FORWARD:
        check_config_type(given, pass_)
    if missing:
        raise KernelConfigError(
            f"the kernel config is {one(type(given).__name__)} without {', '.join(missing)}; an"
            " object in place of a FlashForwardKernelConfig has all thirteen fields that need a"
            " value",
            rule="type",
        )
    names = (field.name for field in fields(FlashForwardKernelConfig))
    values: dict[str, Any] = {n: getattr(given, n) for n in names if hasattr(given, n)}
    dtype = values["dtype"]
    values["dtype"] = DType.from_string(getattr(dtype, "name", None) or str(dtype))
    return FlashForwardKernelConfig(**values)

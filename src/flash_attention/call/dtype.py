# SPDX-License-Identifier: Apache-2.0
"""The element types kernels are compiled for."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from flash_attention.errors import UnsupportedError, quoted

if TYPE_CHECKING:
    import torch  # the names and fields of configs do without it


class DType(IntEnum):
    """The element type of q, k, v and o. Its members are ordered, so that configs can be sorted."""

    FP16 = 5  # torch's own scalar type numbers
    BF16 = 15

    @classmethod
    def from_string(cls, name: str) -> DType:
        """Return the type called `name`, such as "fp16", "BFloat16" or "torch.float16".

        Raises UnsupportedError for any other name.
        """
        spelled = name.strip().lower().removeprefix("torch.") if isinstance(name, str) else name
        for dtype, names in _NAMES.items():
            if spelled in names:
                return dtype
        allowed = ", ".join(n for names in _NAMES.values() for n in names)
        raise UnsupportedError(f"dtype {quoted(name)} is not supported; use one of {allowed}")

    def to_torch_dtype(self) -> torch.dtype:
        """Return torch's dtype for this type."""
        import torch

        return torch.float16 if self is DType.FP16 else torch.bfloat16

    def to_cpp_str(self) -> str:
        """Return the name of the C++ type that kernels use for this type."""
        return "fa::dtype::Fp16" if self is DType.FP16 else "fa::dtype::Bf16"

    @property
    def itemsize(self) -> int:
        """The number of bytes of an element."""
        return 2


_NAMES = {
    DType.FP16: ("fp16", "float16", "half"),
    DType.BF16: ("bf16", "bfloat16"),
}


def e4m3() -> torch.dtype:
    """Return torch's dtype of 8-bit tensors."""
    import torch

    return torch.float8_e4m3fn

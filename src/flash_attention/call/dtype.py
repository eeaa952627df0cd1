# SPDX-License-Identifier: Apache-2.0
"""The element types kernels are compiled for."""

from __future__ import annotations

from enum import IntEnum

import torch

from flash_attention.errors import UnsupportedError, quoted


class DType(IntEnum):
    """Element type of q, k, v and o; ordered, so that configs are."""

    FP16 = 5  # torch's own scalar type numbers
    BF16 = 15

    @classmethod
    def from_string(cls, name: str) -> DType:
        """The type called `name`: "fp16", "float16", "torch.bfloat16", ... in any case."""
        spelled = name.strip().lower().removeprefix("torch.") if isinstance(name, str) else name
        for dtype, names in _NAMES.items():
            if spelled in names:
                return dtype
        allowed = ", ".join(n for names in _NAMES.values() for n in names)
        raise UnsupportedError(f"dtype {quoted(name)} is not supported; use one of {allowed}")

    def to_torch_dtype(self) -> torch.dtype:
        return torch.float16 if self is DType.FP16 else torch.bfloat16

    def to_cpp_str(self) -> str:
        """The C++ type that stands for this one in a kernel."""
        return "fa::dtype::Fp16" if self is DType.FP16 else "fa::dtype::Bf16"

    @property
    def itemsize(self) -> int:
        return 2


_NAMES = {
    DType.FP16: ("fp16", "float16", "half"),
    DType.BF16: ("bf16", "bfloat16"),
}

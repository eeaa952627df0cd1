# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp16", DType.FP16),
        ("Float16", DType.FP16),
        ("torch.float16", DType.FP16),
        (" half ", DType.FP16),
        ("BF16", DType.BF16),
        ("torch.bfloat16", DType.BF16),
    ],
)
def test_from_string_knows_the_usual_spellings(name: str, dtype: DType) -> None:
    assert DType.from_string(name) is dtype


def test_from_string_names_what_is_allowed() -> None:
    with pytest.raises(UnsupportedError, match=r"'fp32' is not supported.*fp16.*bf16"):
        DType.from_string("fp32")


@pytest.mark.parametrize("dtype", DType)
def test_the_torch_type_and_the_string_agree(dtype: DType) -> None:
    assert DType.from_string(str(dtype.to_torch_dtype())) is dtype
    assert dtype.to_torch_dtype().itemsize == dtype.itemsize


def test_values_are_torch_scalar_types() -> None:
    assert torch.empty(1, dtype=torch.float16).dtype == DType.FP16.to_torch_dtype()
    assert DType.FP16 < DType.BF16


def test_cpp_types() -> None:
    assert [d.to_cpp_str() for d in DType] == ["fa::dtype::Fp16", "fa::dtype::Bf16"]

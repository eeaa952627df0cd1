# SPDX-License-Identifier: Apache-2.0
"""Which v is read transposed, and what its strides must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.problem import Problem
from flash_attention.call.transposed import has_transposed_v
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import check_limits

E4M3 = torch.float8_e4m3fn
ONE = torch.ones(1)
FACTORS = {"q_descale": ONE, "k_descale": ONE, "v_descale": ONE}


def call_with(room: int = 48, **others: Any) -> Call:
    """A call with 40 keys, of whose v a column takes `room` bytes."""
    q, k = torch.zeros(2, 7, 4, 64).to(E4M3), torch.zeros(2, 40, 2, 64).to(E4M3)
    v = torch.zeros(2, 2, 64, room).to(E4M3)[..., :40].permute(0, 3, 1, 2)
    return Call(q, k, v, **(FACTORS | others))


def test_contiguous_keys_are_seen_in_the_strides() -> None:
    call = call_with()
    assert has_transposed_v(call)
    problem, views = check_call(call)
    assert problem.v_transposed
    assert str(problem).endswith("v transposed")
    assert Problem.of(call._replace(seqused_k=LENGTHS)).v_transposed
    assert views[2].strides == (2 * 64 * 48, 1, 64 * 48, 48)
    rows = call._replace(v=call.v.contiguous())
    assert not Problem.of(rows).v_transposed


LENGTHS = torch.tensor([40, 40], dtype=torch.int32)


@pytest.mark.parametrize(
    "others",
    [
        {"k_descale": torch.ones(2, 2, 1), "v_descale": torch.ones(2, 2, 1)},
        {"block_table": torch.zeros(2, 1, dtype=torch.int32), "seqused_k": LENGTHS},
        {"cu_seqlens_q": torch.tensor([0, 3, 7], dtype=torch.int32), "max_seqlen_q": 7},
    ],
    ids=["factors of blocks", "pages", "packed queries"],
)
def test_other_calls_want_contiguous_columns(others: dict[str, Any]) -> None:
    call = call_with(**others)
    if call.cu_seqlens_q is not None:
        call = call._replace(q=call.q[0])
    assert not has_transposed_v(call)
    message = r"the last dimension of v has stride 48; it must be contiguous .*v.contiguous\(\)"
    with pytest.raises(UnsupportedError, match=message):
        check_limits(*check_call(call))


def test_16_bits_want_contiguous_columns() -> None:
    call = call_with()
    q, k, v = (t.to(torch.bfloat16) for t in call[:3])
    v = v.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    with pytest.raises(UnsupportedError, match="the last dimension of v has stride 40"):
        check_limits(*check_call(Call(q, k, v)))
    assert not has_transposed_v(call._replace(q=q, q_descale=None))


def test_columns_start_on_16_bytes() -> None:
    message = (
        r"the d_head stride of v is 40 elements; it must be a multiple of 16.*v.contiguous\(\)"
    )
    with pytest.raises(UnsupportedError, match=message):
        check_limits(*check_call(call_with(room=40)))


def test_a_factor_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"v_descale is a float; pass a torch\.Tensor"):
        check_call(call_with(v_descale=0.5))


def test_the_batches_of_a_transposed_v_are_those_of_q() -> None:
    call = call_with()
    with pytest.raises(UnsupportedError, match="q, k and v must agree in batch"):
        check_call(call._replace(q=call.q[:1]))

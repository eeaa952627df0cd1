# SPDX-License-Identifier: Apache-2.0
"""What functions without descale factors say about 8-bit tensors can be done by their callers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention
from flash_attention.call.call import DESCALES
from flash_attention.compat import flash_attn, flash_attn_3, sdpa, transformers

E4M3 = torch.float8_e4m3fn
KV = torch.randn(2, 8, 2, 16).to(E4M3)
STARTS = torch.tensor([0, 8, 16], dtype=torch.int32)
LENGTHS = (STARTS, STARTS, 8, 8)


def forward(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return transformers.attention_forward(torch.nn.Module(), q, k, v, None)


DENSE: dict[str, Callable[..., Any]] = {
    "flash_attn_func": flash_attn.flash_attn_func,
    "flash_attn_with_kvcache": flash_attn.flash_attn_with_kvcache,
    "sdpa": sdpa.scaled_dot_product_attention,
    "transformers": forward,
}


@pytest.mark.parametrize("of_q", [torch.bfloat16, E4M3], ids=str)
@pytest.mark.parametrize("name", DENSE)
def test_8_bit_tensors_are_sent_to_a_function_with_factors(name: str, of_q: torch.dtype) -> None:
    function, q = DENSE[name], torch.ones(2, 8, 2, 16).to(of_q)
    with pytest.raises(UnsupportedError, match=r"is torch\.float8_e4m3fn, and") as caught:
        function(q, KV, KV)
    check_advice(str(caught.value), function)
    given = list(inspect.signature(function).parameters)[0 if of_q == E4M3 else 1]
    assert re.match(rf"{given} is ", str(caught.value)) or name == "transformers"


def check_advice(message: str, function: Callable[..., Any]) -> None:
    """The advised function exists and has every factor, which the called one has not."""
    found = re.search(r"call flash_attention\.(\S+), which takes (.*) or convert", message)
    assert found is not None
    modules = {"attention": attention, **vars(flash_attn_3)}
    advised = inspect.signature(modules[found[1].removeprefix("compat.flash_attn_3.")]).parameters
    for factor in DESCALES:
        assert factor in found[2]
        assert factor in advised
        assert factor not in inspect.signature(function).parameters


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (flash_attn.flash_attn_varlen_func, (*(KV.flatten(0, 1),) * 3, *LENGTHS)),
        (flash_attn.flash_attn_kvpacked_func, (KV, torch.stack((KV, KV), 2))),
        (flash_attn.flash_attn_qkvpacked_func, (torch.stack((KV, KV, KV), 2),)),
    ],
    ids=["varlen", "kvpacked", "qkvpacked"],
)
def test_so_are_packed_ones(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedError, match="of version 2 has no parameters for") as caught:
        function(*arguments)
    check_advice(str(caught.value), function)


def test_nothing_is_stored_in_an_8_bit_cache_without_factors() -> None:
    cache = torch.zeros(2, 8, 2, 16).to(E4M3)
    with pytest.raises(UnsupportedError, match=r"k_cache is torch\.float8_e4m3fn"):
        flash_attn.flash_attn_with_kvcache(
            torch.ones(2, 1, 2, 16), cache, cache.clone(), KV[:, :1], KV[:, :1], cache_seqlens=3
        )
    assert not cache.float().any()


def test_calls_of_torch_go_to_torch() -> None:
    q = torch.ones(KV.shape, dtype=torch.bfloat16)
    with sdpa.route_sdpa() as routed, pytest.raises(RuntimeError):  # torch has no such function
        torch.nn.functional.scaled_dot_product_attention(q, KV, KV)
    (reason,) = routed.to_torch
    assert reason.startswith("key is torch.float8_e4m3fn")

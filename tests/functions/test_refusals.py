# SPDX-License-Identifier: Apache-2.0
"""Functions, and what is given beside them, that are refused, before anything is compiled."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import flash_attention
from flash_attention import Function, UnsupportedError, masks, scores
from flash_attention.call.call import DESCALES, Call
from tests.devices import HOPPER_DEVICES

pytestmark = pytest.mark.usefixtures("no_compile")
PREFIX = Function(mask=masks.prefix_lm(8))

# What type checkers would refuse, too.
attention: Any = flash_attention.attention
forward: Any = flash_attention.forward


def tensors(d: int = 64, dtype: torch.dtype = torch.float16, seq: int = 48) -> list[Tensor]:
    generator = torch.Generator().manual_seed(d)
    draw = torch.randn(3, 1, seq, 2, d, generator=generator)
    return list(draw.to(dtype))


def branches(batch: Any, head: Any, query: Any, key: Any) -> Any:
    if query < key:
        return head == 0
    return head == 1


WRONG: dict[str, tuple[dict[str, Callable[..., Any]], str]] = {
    "arity of a mask": ({"mask": lambda query, key: query >= key}, "called with 4 arguments"),
    "arity of a score": ({"score": lambda s, q, k: s}, "called with 5 arguments"),
    "number for a mask": ({"mask": lambda b, h, q, k: q - k}, "returns an int; it must return"),
    "bool for a score": ({"score": lambda s, b, h, q, k: q < k}, "returns a bool; it must return"),
    "nothing": ({"score": lambda s, b, h, q, k: None}, "returns None; it must return the new"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_function_of_another_shape_is_refused_with_its_line(case: str) -> None:
    given, words = WRONG[case]
    (function,) = given.values()
    line = inspect.getsourcelines(function)[1]
    message = re.escape(f"{__file__}:{line}: ") + "(.|\n)*" + words
    with pytest.raises(UnsupportedError, match=message):
        attention(*tensors(), **given)


def test_python_cannot_branch_on_a_symbol_and_the_line_is_named() -> None:
    line = branches.__code__.co_firstlineno + 1
    message = re.escape(f"{__file__}:{line}: if query < key:\n") + ".*write torch.where"
    with pytest.raises(UnsupportedError, match=message):
        attention(*tensors(), mask=branches)


def test_what_is_no_function_is_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(UnsupportedError, match="a Tensor is no mask function"):
        attention(q, k, v, mask=torch.ones(48, 48).bool())
    with pytest.raises(UnsupportedError, match=r"pass flash_attention.Function\(score=f, mask=g\)"):
        attention(q, k, v, function=masks.causal())
    with pytest.raises(UnsupportedError, match="neither score nor mask"):
        Function()
    with pytest.raises(UnsupportedError, match="beside score or mask; leave one of them out"):
        attention(q, k, v, mask=masks.causal(), function=PREFIX)


def test_captured_tensors_on_another_device_are_refused_and_share_no_plan() -> None:
    here, there = (scores.alibi(torch.ones(2, device=on)) for on in ("cpu", "meta"))
    message = (
        r'captured tensor 0 .* shape \(2,\), is on meta, and q on cpu; move it with .to\("cpu"'
    )
    with pytest.raises(UnsupportedError, match=message):
        attention(*tensors(), score=there)
    q, k, v = tensors()
    call = Call(q, k, v, function=Function(here))
    assert call.key() == call._replace(function=Function(here)).key()
    assert call.key() != call._replace(function=Function(there)).key()


def test_transforms_do_not_see_captured_tensors_that_require_grad() -> None:
    q, k, v = tensors()
    function = Function(scores.alibi(torch.ones(2, requires_grad=True)))

    def loss(q: Tensor) -> Any:
        return attention(q, k, v, function=function).sum()

    with pytest.raises(UnsupportedError, match=r"captured tensor 0 .* capture tensor.detach"):
        torch.func.grad(loss)(q)


BESIDE: dict[str, tuple[dict[str, Any], str]] = {
    "split_keys": ({"split_keys": 16}, "split_keys is given, and so is a score or mask function"),
    "batch_invariant": ({"batch_invariant": True}, "batch_invariant is given, and so is a score"),
    "return_max": ({"return_max": True}, "return_max is given, and so is a score or mask function"),
}


@pytest.mark.parametrize("option", BESIDE)
def test_options_that_no_kernel_with_a_function_has_are_refused(option: str) -> None:
    more, words = BESIDE[option]
    with pytest.raises(UnsupportedError, match=words):
        attention(*tensors(), function=PREFIX, **more)


def test_what_no_kernel_computes_with_a_function_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "sm_90")
    q, k, v = (t.to(torch.float8_e4m3fn) for t in tensors())
    with pytest.raises(UnsupportedError, match="have no functions with k and v of 8 bits"):
        attention(q, k, v, function=PREFIX, **dict.fromkeys(DESCALES, torch.ones(1)))
    with pytest.raises(UnsupportedError, match="kernels have head dimensions up to 256"):
        attention(*tensors(320), function=PREFIX)
    wide = tensors(512, torch.bfloat16)
    with pytest.raises(UnsupportedError, match="HopperWideKernelConfig kernels have no functions"):
        forward("hopper_wide(BF16, 512, 512): lazy_8", *wide, function=PREFIX)


def test_older_gpus_have_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_STRICT", "sm_80")
    q, k, v = (t.requires_grad_() for t in tensors())
    attention(q, k, v, function=PREFIX).sum().backward()
    assert q.grad is not None


def test_other_functions_say_how_they_take_one() -> None:
    q, k, v = tensors()
    with pytest.raises(TypeError, match=r"'mask': pass function=flash_attention.Function"):
        forward("rung:26", q, k, v, mask=masks.causal())


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_reads_out_of_bounds_are_refused_on_the_cpu_and_by_validate(device: str) -> None:
    q, k, v = (t.to(device) for t in tensors())
    short = torch.zeros(40, dtype=torch.int32, device=device)
    message = r"captured tensor 0 of shape \(40,\) is read at index 47 of dimension 0"
    for given in ({"mask": masks.documents(short)}, {"score": lambda s, b, h, q, k: s + short[k]}):
        with pytest.raises(IndexError, match=message):
            attention(q, k, v, validate=True, **given)
    before = Function(lambda s, b, h, q, k: s + short[torch.clamp(k, max=9) - 1])
    with pytest.raises(IndexError, match="is read at index -1 of dimension 0"):
        attention(q, k, v, validate=True, function=before)
    if device == "cpu":
        with pytest.raises(IndexError, match=message):
            attention(q, k, v, mask=masks.documents(short))
        with pytest.raises(IndexError, match=message):
            attention(q, k, v, mask=masks.documents(short), config="rung:26", validate=True)

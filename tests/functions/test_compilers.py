# SPDX-License-Identifier: Apache-2.0
"""Functions under torch.compile, whose graphs end where they begin, and under other tracers, which
refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils.flop_counter import FlopCounterMode

from flash_attention import Function, UnsupportedError, attention, masks, scores
from flash_attention.compat.flash_attn import flash_attn_func
from flash_attention.compat.flex_attention import flex_attention

SLOPES = torch.tensor([0.1, 0.3])
ALIBI, CAUSAL = scores.alibi(SLOPES), masks.causal()
BOTH = Function(ALIBI, CAUSAL)
BLOCKED = create_block_mask(CAUSAL, None, None, 20, 20, device="cpu", BLOCK_SIZE=16)
Caller = Callable[[Tensor, Tensor, Tensor], Any]
CALLERS: dict[str, Caller] = {
    "score": lambda q, k, v: attention(q * 2, k, v, score=ALIBI) + 1,
    "mask": lambda q, k, v: attention(q * 2, k, v, mask=CAUSAL) + 1,
    "both, and other options": lambda q, k, v: attention(
        q * 2, k, v, score=ALIBI, mask=CAUSAL, softcap=3.0, window=(9, 9), return_lse=True
    )[0],
    "function": lambda q, k, v: attention(q * 2, k, v, function=BOTH) + 1,
    "function made inside": lambda q, k, v: attention(
        q * 2, k, v, function=Function(lambda s, b, h, i, j: s * SLOPES[h] + (i - j) / 8)
    ),
    "flash-attn": lambda q, k, v: flash_attn_func(q * 2, k, v, alibi_slopes=SLOPES),
    "flex_attention": lambda q, k, v: flex_attention(
        *(t.transpose(1, 2) for t in (q * 2, k, v)), score_mod=ALIBI, block_mask=BLOCKED
    ),
}


def tensors(batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return [torch.randn(batch, 20, 2, 16, generator=generator) for _ in "qkv"]


@pytest.fixture(autouse=True)
def _no_graphs_of_others() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CALLERS)
def test_a_compiled_function_computes_the_same(name: str) -> None:
    caller = CALLERS[name]
    compiled = torch.compile(caller, backend="aot_eager")
    for batch in (2, 2, 3):
        given = [t.requires_grad_() for t in tensors(batch)]
        found, wanted = compiled(*given), caller(*given)
        torch.testing.assert_close(found, wanted)
        weights = torch.linspace(-1, 1, wanted.numel()).view(wanted.shape)
        gradients = (torch.autograd.grad(out, given, weights) for out in (found, wanted))
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*given), wanted)


def test_captured_tensors_are_read_in_every_call() -> None:
    slopes = SLOPES.clone()

    def caller(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, score=lambda s, b, h, i, j: s - slopes[h] * (i - j).abs())

    compiled, given = torch.compile(caller, backend="eager"), tensors()
    before = compiled(*given)
    slopes.mul_(5)
    torch.testing.assert_close(compiled(*given), caller(*given))
    assert not torch.allclose(before, compiled(*given))


@pytest.mark.parametrize("name", CALLERS)
def test_a_whole_graph_is_refused_with_what_to_do(name: str) -> None:
    compiled = torch.compile(CALLERS[name], backend="eager", fullgraph=True)
    message = "given a score or mask function, which is traced outside of graphs: compile without"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=message):
        compiled(*tensors())


class Model(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, function=BOTH)


def faked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return attention(*(mode.from_tensor(t) for t in (q, k, v)), function=BOTH)


def counted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with FlopCounterMode(display=False):
        return attention(q, k, v, function=BOTH)


TRACERS: dict[str, Caller] = {
    "export": lambda *given: torch.export.export(Model(), given, strict=False),
    "make_fx": lambda *given: make_fx(Model())(*given),
    "fake": faked,
    "meta": lambda *given: attention(*(t.to("meta") for t in given), function=BOTH),
    "flop": counted,
    "vmap": lambda *given: torch.vmap(Model())(*(t[:, None] for t in given)),
    "jvp": lambda *given: torch.func.jvp(Model(), given, given),
}


@pytest.mark.parametrize("name", TRACERS)
def test_other_tracers_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"a score or mask function|is on|a tangent"):
        TRACERS[name](*tensors())


def test_torch_func_differentiates_a_call() -> None:
    given = tensors()
    weights = torch.linspace(-1, 1, given[0].numel()).view(given[0].shape)
    found = torch.func.grad(lambda *own: (Model()(*own) * weights).sum(), (0, 1, 2))(*given)
    leaves = [t.requires_grad_() for t in given]
    torch.testing.assert_close(found, torch.autograd.grad(Model()(*leaves), leaves, weights))

# SPDX-License-Identifier: Apache-2.0
"""Functions under torch.compile, which follows them without a graph break, and under other tracers,
which refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import and_masks, create_block_mask, or_masks
from torch.utils.flop_counter import FlopCounterMode

from flash_attention import Function, UnsupportedError, attention, masks, scores
from flash_attention.compat import flex_attention as flex
from flash_attention.compat.flash_attn import flash_attn_func
from tests.devices import HOPPER

flex_attention: Any = flex.flex_attention
SLOPES = torch.tensor([0.1, 0.3])
TABLE = torch.linspace(-2, 2, 40).view(2, 20).to(torch.float64)
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


def assert_same(compiled: Caller, caller: Caller, given: list[Tensor]) -> None:
    """Both give the same results and gradients."""
    given = [t.requires_grad_() for t in given]
    found, wanted = compiled(*given), caller(*given)
    torch.testing.assert_close(found, wanted)
    weights = torch.linspace(-1, 1, wanted.numel(), device=wanted.device).view(wanted.shape)
    gradients = (torch.autograd.grad(out, given, weights) for out in (found, wanted))
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), wanted)


@pytest.mark.parametrize("name", CALLERS)
def test_a_whole_graph_computes_the_same(name: str) -> None:
    caller = CALLERS[name]
    compiled = torch.compile(caller, backend="aot_eager", fullgraph=True)
    for batch in (2, 2, 3):
        assert_same(compiled, caller, tensors(batch))


FUNCTIONS: dict[str, dict[str, Any]] = {
    "masks of the library": {"mask": ~masks.neighbourhood(5, 1) & masks.sink_window(2, 9)},
    "captured tensors of two kinds": {
        "mask": masks.documents(torch.arange(20) // 6) | masks.prefix_lm(torch.tensor([3, 9, 1])),
        "score": scores.additive_bias(torch.linspace(-2, 2, 400).sin().view(20, 20)),
    },
    "operators with a number first": {
        "score": lambda s, b, h, i, j: 1 - s + 2 * i / (3 + j) + 2.0 ** (-s) - 7 // (1 + j) % 3,
        "mask": lambda b, h, i, j: (1 | i) ^ (3 & j) < 1 << (4 - h),
    },
    "functions of torch": {
        "score": lambda s, b, h, i, j: torch.where(i >= j, s, -torch.inf).clamp(max=3).tanh(),
        "mask": and_masks(CAUSAL, or_masks(masks.dilated(2), lambda b, h, i, j: i - j < 4)),
    },
    "rows of a tensor": {
        "score": lambda s, b, h, i, j: s * TABLE[h][i].float() + TABLE[0, -1],
    },
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_whole_graphs_of_all_that_functions_do(name: str) -> None:
    def caller(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attention(q, k, v, **FUNCTIONS[name])

    assert_same(torch.compile(caller, backend="aot_eager", fullgraph=True), caller, tensors())


def test_numbers_and_lengths_that_change_are_arguments() -> None:
    programs: list[Any] = []

    def caller(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, reach: int) -> Tensor:
        twice = 2 * slopes
        return attention(
            *(q, k, v),
            score=lambda s, b, h, i, j: s - twice[h] * (i - j).abs(),
            mask=lambda b, h, i, j: (i - j <= reach) & (i != reach) | (j == k.shape[1] - 1),
        )

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        programs.extend(n.kwargs["program"] for n in graph.graph.nodes if "program" in n.kwargs)
        return graph

    compiled = torch.compile(caller, backend=backend, fullgraph=True)
    for seq, reach in ((20, 3), (24, 4), (30, 7), (40, 9), (50, 1)):
        q, k, v = torch.randn(3, 2, seq, 2, 16)
        slopes = torch.rand(2)
        found = compiled(q, k, v, slopes, reach)
        torch.testing.assert_close(found, caller(q, k, v, slopes, reach))
    assert len(programs) == 2  # one for the first lengths, and one for all others
    assert len(set(programs)) == 1


def test_captured_tensors_are_read_in_every_call() -> None:
    slopes = SLOPES.clone()

    def caller(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, score=lambda s, b, h, i, j: s - slopes[h] * (i - j).abs())

    compiled, given = torch.compile(caller, backend="eager", fullgraph=True), tensors()
    before = compiled(*given)
    slopes.mul_(5)
    torch.testing.assert_close(compiled(*given), caller(*given))
    assert not torch.allclose(before, compiled(*given))
    slopes = SLOPES - 1
    torch.testing.assert_close(compiled(*given), caller(*given))


ABSOLUTE: Caller = lambda q, k, v: attention(  # noqa: E731
    q * 2, k, v, score=lambda s, b, h, i, j: s - abs(i - j)
)


def test_what_the_compiler_does_not_show_ends_a_graph() -> None:
    assert_same(torch.compile(ABSOLUTE, backend="aot_eager"), ABSOLUTE, tensors())
    whole = torch.compile(ABSOLUTE, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"Python's abs in place of torch.abs"):
        whole(*tensors())


def test_a_captured_tensor_that_requires_grad_ends_a_graph_if_gradients_are_recorded() -> None:
    slopes = SLOPES.clone().requires_grad_()

    def caller(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attention(q, k, v, score=lambda s, b, h, i, j: s - slopes[h] * (i - j).abs())

    given = tensors()
    whole = torch.compile(caller, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(whole(*given), caller(*given))
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"that requires grad: capture tensor"):
        whole(*given)
    found, wanted = torch.compile(caller, backend="eager")(*given), caller(*given)
    weights = torch.linspace(-1, 1, wanted.numel()).view(wanted.shape)
    gradients = (torch.autograd.grad(out, slopes, weights) for out in (found, wanted))
    torch.testing.assert_close(*gradients)


@HOPPER
@pytest.mark.parametrize("name", CALLERS)
def test_kernels_in_graphs_of_inductor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SLOPES", SLOPES.cuda())
    monkeypatch.setitem(globals(), "ALIBI", scores.alibi(SLOPES.cuda()))
    monkeypatch.setitem(globals(), "BOTH", Function(ALIBI, CAUSAL))
    monkeypatch.setitem(globals(), "BLOCKED", BLOCKED.to("cuda"))
    compiled = torch.compile(CALLERS[name], fullgraph=True)
    for batch in (2, 3):
        given = [t.to("cuda", torch.bfloat16) for t in tensors(batch)]
        assert_same(compiled, CALLERS[name], given)


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

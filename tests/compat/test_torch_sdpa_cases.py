# SPDX-License-Identifier: Apache-2.0
"""Random cases of torch's own tests of its flash backend and of varlen_attn, through its registry:
the same lengths, head dimensions, scales, masks, dropout, layouts, distributions and windows, and
its rule that errors are at most a small multiple of those of 16 bits. Cases also have
grouped heads, which torch tests apart. A few small cases run on the CPU, where torch gives dense
tensors to no flash backend and the operator is called by name.

What torch tests besides and does not apply: masks as tensors, head dimensions of V of its own and
float32 belong to other backends of torch. `return_debug_mask` is refused, so that dropout is
compared through `dropout_mask`, with the share of weights that
is kept here. Gradients are the same in every run, so there is no warning about
determinism to expect. Nested tensors that are broadcast are expanded by torch before an operator is
called, and `test_torch_registry.py` has nested tensors.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flash_attention import dropout_mask
from flash_attention.call.dropout import STEPS, kept_steps
from flash_attention.compat import torch as compat
from tests.devices import DEVICES, HOPPER

registry: Any = torch.nn.attention
sdpa: Any = F.scaled_dot_product_attention
pytestmark = pytest.mark.skipif(
    not hasattr(registry, "register_flash_attention_impl"), reason="torch has no registry"
)
LENGTHS_Q, LENGTHS_K = (4, 8, 64, 143, 512, 2048), (4, 64, 127, 256, 579, 587, 1024, 2048)
HEAD_DIMS = (8, 16, 21, 32, 64, 72, 96, 128, 160, 192, 203, 256)
DROPOUT = (0.0, 0.0, 0.22, 0.48)
HEADS = ((4, 4), (8, 2))
LAYOUTS = ("heads before rows", "rows before heads", "in one tensor")
RANGES = ((0, 1), (-3, 3), None)  # of uniform numbers; None: normal ones
WINDOWS = (
    *((-1, -1), (-1, 0), (4, 0), (-1, 4), (0, 0), (1, 0)),
    *((0, 1), (0, -1), (4, 4), (8, 2), (1025, 1025)),
)
MOST = 3.0  # times the errors of 16 bits


@pytest.fixture
def active() -> Iterator[None]:
    registry.activate_flash_attention_impl(compat.register())
    compat.calls.clear()
    yield
    registry.restore_flash_attention_impl(_raise_warn=False)


@dataclass(frozen=True)
class Case:
    """A call of scaled_dot_product_attention."""

    dtype: torch.dtype
    batch: int
    queries: int
    keys: int
    heads: int
    heads_k: int
    d: int
    causal: bool
    dropout: float
    scale: float | None
    layout: str
    range: tuple[int, int] | None

    def tensors(self, generator: torch.Generator) -> tuple[list[Tensor], Tensor]:
        """q, k and v, whose gradients are asked for, and the gradient of the output."""
        rows = ((self.queries, self.heads), (self.keys, self.heads_k), (self.keys, self.heads_k))
        if self.layout == "in one tensor" and len(set(rows)) == 1:
            shape = (self.batch, self.queries, 3, self.heads, self.d)
            given = [t.transpose(1, 2) for t in self._draw(shape, generator).unbind(2)]
        elif self.layout == "heads before rows":
            given = [self._draw((self.batch, h, n, self.d), generator) for n, h in rows]
        else:
            shapes = [(self.batch, n, h, self.d) for n, h in rows]
            given = [self._draw(shape, generator).transpose(1, 2) for shape in shapes]
        upstream = self._draw((self.batch, self.heads, self.queries, self.d), generator)
        return [t.detach().requires_grad_() for t in given], upstream

    def _draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        drawn = torch.empty(shape, device=generator.device)
        if self.range is None:
            return drawn.normal_(generator=generator).to(self.dtype)
        return drawn.uniform_(*self.range, generator=generator).to(self.dtype)

    def compute(self, given: list[Tensor]) -> Tensor:
        """torch's attention, which gives the call to its flash backend."""
        options: Any = (self.dropout, self.causal)
        if given[0].device.type == "cpu":
            operator = torch.ops.aten._scaled_dot_product_flash_attention
            out: Tensor = operator(*given, *options, scale=self.scale)[0]
            return out
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            grouped = self.heads != self.heads_k
            out = sdpa(*given, None, *options, scale=self.scale, enable_gqa=grouped)
        return out

    def kept(self, out: Tensor) -> Tensor | None:
        """Which weights dropout kept."""
        if not self.dropout:
            return None
        shape = (self.batch, self.heads, self.queries, self.keys)
        return dropout_mask(state_of(out), self.dropout, shape).to(out.device)

    def scores(self, given: list[Tensor]) -> Tensor:
        seen = torch.ones(self.queries, self.keys, dtype=torch.bool, device=given[0].device)
        return scores_of(given, seen.tril() if self.causal else seen, self.scale)

    def results(
        self, given: list[Tensor], upstream: Tensor, kept: Tensor | None, dtype: torch.dtype
    ) -> list[Tensor]:
        """The output and the gradients by plain products in a type."""
        leaves = [t.detach().to(dtype).requires_grad_() for t in given]
        weights = self.scores(leaves).softmax(-1)
        if kept is not None:
            weights = weights * kept.to(dtype) * (STEPS / kept_steps(self.dropout))
        out = weights @ leaves[2].repeat_interleave(self.heads // self.heads_k, 1)
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream.to(dtype))]

    def references(
        self, given: list[Tensor], upstream: Tensor, kept: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The output and the gradients of 16 bits, and the exact ones.

        Those of 16 bits have the errors of 16-bit products, and one that flash attention has
        besides. From dP of a row it subtracts sum(dO O), and its O is the stored one, of 16 bits.
        In dQ, what rounding O changes that sum by is multiplied by the weighted mean of the keys.
        Keys of (0, 1) have a mean of 1/2, while the exact dS of a row add up to zero. So the change
        is nearly the whole error of dQ there, and products, which have none of it, are too small a
        measure. torch's own tests allow dQ four times their error, and leave the reason open. The
        gradient of the log-sum-exp is the weights, so that it gives the share of the change.
        """
        rough, exact = (
            self.results(given, upstream, kept, of) for of in (self.dtype, torch.double)
        )
        leaves = [t.detach().double().requires_grad_() for t in given[:2]]
        change = (upstream * (exact[0].to(self.dtype) - exact[0])).sum(-1)
        of_change = torch.autograd.grad(self.scores(leaves).logsumexp(-1), leaves, -change)
        rough[1:3] = (t + c for t, c in zip(rough[1:3], of_change, strict=True))
        return rough, exact


def scores_of(given: list[Tensor], seen: Tensor, scale: float | None) -> Tensor:
    q, k = given[:2]
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return scores.masked_fill(~seen, -torch.inf)


def state_of(out: Tensor) -> Tensor:
    """The seed and the offset that a backward pass was given."""
    node: Any = out.grad_fn
    while not any(hasattr(node, name) for name in ("_saved_rng_state", "_saved_philox_seed")):
        node = node.next_functions[0][0]
    saved = "_saved_rng_state" if hasattr(node, "_saved_rng_state") else "_saved_philox_seed"
    found: Tensor = getattr(node, saved)
    return found.view(torch.int64)


def drawn_case(seed: int, large: bool) -> Case:
    """A case, whose lengths are at most 143 if it is not large."""
    draw = random.Random(seed)
    fitting = [[n for n in some if large or n <= 143] for some in (LENGTHS_Q, LENGTHS_K)]
    queries, keys = map(draw.choice, fitting)
    causal, d, dropout = draw.random() < 0.5, draw.choice(HEAD_DIMS), draw.choice(DROPOUT)
    keys = queries if causal else keys  # torch's flash backend takes no others
    dtype, heads = draw.choice((torch.float16, torch.bfloat16)), draw.choice(HEADS)
    if not large:  # an operator that is called by name is given heads and columns as they are
        heads, d = (4, 4), -(-d // 8) * 8
    batches = (1, 3, 8) if queries * keys <= 2**19 else (1, 3)  # masks are drawn on the CPU
    scale, batch = draw.choice((None, 1 / d, 0.3)), draw.choice(batches if large else (1, 2))
    sizes = (batch, queries, keys, *heads, d)
    return Case(dtype, *sizes, causal, dropout, scale, draw.choice(LAYOUTS), draw.choice(RANGES))


def agree(found: list[Tensor], rough: list[Tensor], exact: list[Tensor]) -> None:
    """Compare the errors of the output and the gradients with those of the rough ones, or with the
    rounding of their largest number, if that is more."""
    for name, ours, theirs, right in zip(
        ("out", "dq", "dk", "dv"), found, rough, exact, strict=True
    ):
        error, allowed = ((t.double() - right).abs().max() for t in (ours, theirs))
        rounding = torch.finfo(ours.dtype).eps / 2 * right.abs().max()
        allowed = MOST * max(allowed, rounding) + 1e-5
        assert error <= allowed, f"{name}: {error:.2e}, and {allowed:.2e} is allowed"


def compare(case: Case, generator: torch.Generator) -> None:
    torch.manual_seed(generator.initial_seed())  # of dropout
    given, upstream = case.tensors(generator)
    out = case.compute(given)
    kept = case.kept(out)
    found = [out, *torch.autograd.grad(out, given, upstream)]
    assert len(compat.calls) == 2
    agree(found, *case.references(given, upstream, kept))


@HOPPER
@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("seed", range(120))
def test_errors_are_those_of_16_bits(seed: int) -> None:
    compare(drawn_case(seed, large=True), torch.Generator("cuda").manual_seed(seed))


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("seed", range(12))
def test_errors_are_those_of_16_bits_on_the_cpu(seed: int) -> None:
    compare(drawn_case(seed, large=False), torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_packed_sequences(window: tuple[int, int], device: str) -> None:
    """Windows on either side, of a width of nothing and of more than there is."""
    varlen = import_module("torch.nn.attention.varlen")
    lengths = (64, 1, 192) if device == "cpu" else (64, 1024, 1, 512)
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    generator, shape = torch.Generator(device).manual_seed(sum(window)), (sum(lengths), 2, 64)
    drawn = (torch.randn(shape, generator=generator, device=device) for _ in "qkvo")
    *given, upstream = (t.bfloat16() for t in drawn)
    given = [t.requires_grad_() for t in given]
    cu = torch.tensor(starts, dtype=torch.int32, device=device)
    longest, scale = max(lengths), 0.1 if sum(window) % 2 else None
    out = varlen.varlen_attn(*given, cu, cu, longest, longest, scale=scale, window_size=window)
    found = [out, *torch.autograd.grad(out, given, upstream)]

    def reference(dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.detach().to(dtype).requires_grad_() for t in given]
        outs = []
        for first, end in pairwise(starts):
            rows = [t[first:end].transpose(0, 1) for t in leaves]
            behind = torch.arange(end - first, device=device)
            behind = behind[:, None] - behind
            left, right = (side if side >= 0 else end for side in window)
            seen = (behind <= left) & (-behind <= right)
            weights = scores_of(rows, seen, scale).softmax(-1)
            outs.append((weights @ rows[2]).transpose(0, 1))
        out = torch.cat(outs)
        return [out, *torch.autograd.grad(out, leaves, upstream.to(dtype))]

    agree(found, reference(torch.bfloat16), reference(torch.float64))


@HOPPER
@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("dropout", [0.0, 0.22])
@pytest.mark.parametrize("d", [32, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_graphs_of_both_passes(causal: bool, d: int, dropout: float) -> None:
    """Replays give the same numbers without dropout, and drop other weights with it."""
    sizes = (8, 512, 512 if causal else 1024, 4, 4, d)
    case = Case(torch.float16, *sizes, causal, dropout, 1 / d, LAYOUTS[0], (0, 1))
    given, upstream = case.tensors(torch.Generator("cuda").manual_seed(d))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.autograd.grad(case.compute(given), given, upstream)
    side.synchronize()
    forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(forward):
        torch.rand_like(given[0])  # moves torch's generator within the graph
        out = case.compute(given)
    forward.replay()
    first = out.detach().clone()
    forward.replay()
    assert torch.equal(first, out) == (not dropout)
    kept = case.kept(out)  # of the last replay; a backward pass frees what the node has saved
    with torch.cuda.graph(backward):
        gradients = torch.autograd.grad(out, given, upstream)
    backward.replay()
    agree([out, *gradients], *case.references(given, upstream, kept))

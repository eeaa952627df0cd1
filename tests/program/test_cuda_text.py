# SPDX-License-Identifier: Apache-2.0
"""The struct of a program: what it says of itself, where values are computed, reads out of bounds,
gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch

from flash_attention.program.cuda_reader import cuda_text
from flash_attention.program.derivative import differentiate
from flash_attention.program.layout import DIGITS, Sum
from flash_attention.program.nodes import Gathered, How
from flash_attention.program.torch_reader import change_score, evaluate, grid
from flash_attention.program.trace import Traced, trace, trace_mask, trace_score
from tests.devices import DEVICES
from tests.program.on_device import Session, on_device

SLOPES = torch.tensor([0.5, -0.25, 2.0])
BIAS = torch.randn(3, 6, 9)
SHAPE = (2, 3, 6, 9)


def constants(*functions: Any) -> set[str]:
    text = cuda_text(trace(*functions).program)
    return set(re.findall(r"constexpr bool (k\w+) = true", text))


def test_constants() -> None:
    def alibi(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + SLOPES[h] * (k - q)

    def capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return 5.0 * torch.tanh(s / 5.0)

    assert constants(alibi) == {"kHasScore", "kSlopeIsOne", "kTilts"}
    assert constants(capped) == {"kHasScore"}
    assert constants(None, lambda b, h, q, k: q >= k) == {"kHasMask", "kSlopeIsOne"}


def test_constants_of_reads() -> None:
    """Of one number, that a query or a key alone says where to find."""
    ids = torch.zeros(2, 9, dtype=torch.int32)
    documents = constants(None, lambda b, h, q, k: ids[b, q] == ids[b, k])
    assert documents & {"kReadsQueries", "kReadsKeys"} == {"kReadsQueries", "kReadsKeys"}
    assert "kReadsKeys" in constants(lambda s, b, h, q, k: s + ids[b, k], None)
    for score in (
        lambda s, b, h, q, k: s + BIAS[h, q, k],
        lambda s, b, h, q, k: s + SLOPES[h] * (k // 3),
        lambda s, b, h, q, k: s * SLOPES[k % 3] + ids[b, k],
        lambda s, b, h, q, k: s + SLOPES[h],
    ):
        assert "kReadsKeys" not in constants(score, None)


def body(text: str, name: str) -> str:
    return text.partition(f" {name}(")[2].partition("\n}")[0]


def test_a_value_is_computed_where_all_it_needs_is_known() -> None:
    text = cuda_text(trace_score(lambda s, b, h, q, k: s / 7.0 + BIAS[h, q % 5, k // 2]).program)
    assert "floor_remainder(query" in body(text, "of_query")
    assert "floor_divide(key" in body(text, "of_key")
    assert "__frcp_rn(args.number" in body(text, "of_head")
    assert "offset" not in body(text, "score")


@pytest.mark.parametrize(
    ("distance", "converted"),
    [
        (lambda q, k: abs(k - q + 2), ()),  # the kernel gives the distance of the query and the key
        (lambda q, k: abs(q - k), ()),
        (lambda q, k: 2 - (q + k), ("query", "key")),
    ],
)
def test_elements_convert_no_distances(
    distance: Callable[[Any, Any], Any], converted: tuple[str, ...]
) -> None:
    traced = trace_score(lambda s, b, h, q, k: s - SLOPES[h] * distance(q, k))
    text = cuda_text(traced.program)
    for side in ("query", "key"):
        assert (f"static_cast<float>({side})" in body(text, f"of_{side}")) is (side in converted)
    assert "static_cast" not in body(text, "score")
    score = torch.randn(SHAPE)
    _, changed, _ = on_device(traced, score)
    torch.testing.assert_close(changed, change_score(traced, score, grid(*SHAPE)))


def test_distances_in_masks_and_of_captured_integers_are_exact() -> None:
    times = torch.tensor([2**30, 2**30 + 1, 2**30 + 3])
    traced = trace(
        lambda s, b, h, q, k: s + (times[k] - times[q]), lambda b, h, q, k: (k - q).float() < 2.5
    )
    seen, changed, _ = on_device(traced, torch.zeros(1, 1, 3, 3))
    assert torch.equal(changed[0, 0], (times - times[:, None]).float())
    assert "static_cast<float>(n" in body(cuda_text(traced.program), "mask")
    assert seen[0, 0].tolist() == [[k - q < 3 for k in range(3)] for q in range(3)]


def test_programs_without_slots_have_arguments() -> None:
    seen, changed, slopes = on_device(
        trace(lambda s, b, h, q, k: -s, lambda b, h, q, k: q >= k), torch.ones(SHAPE)
    )
    assert torch.equal(seen, torch.ones(6, 9, dtype=torch.bool).tril().expand(SHAPE))
    assert torch.equal(changed, -torch.ones(SHAPE))
    assert torch.equal(slopes, -torch.ones(SHAPE))


def test_missing_functions_change_and_hide_nothing() -> None:
    score = torch.randn(SHAPE)
    seen, changed, slopes = on_device(trace(), score)
    assert bool(seen.all())
    assert torch.equal(changed, score)
    assert torch.equal(slopes, torch.ones(SHAPE))


@pytest.mark.parametrize("step", [-20, -1, 1, 20])
def test_reads_out_of_bounds_stay_within_the_tensor(step: int) -> None:
    """The emulator would report a read outside of every allocation."""
    traced = trace_score(lambda s, b, h, q, k: SLOPES[h + step] + BIAS[h, q + step, k + step])
    score = torch.zeros(SHAPE)
    _, changed, _ = on_device(traced, score)

    def within(index: torch.Tensor, size: int) -> torch.Tensor:
        return index.clamp(0, size - 1).long()

    _, h, q, k = grid(*SHAPE)
    bias = BIAS[h.long(), within(q + step, 6), within(k + step, 9)]
    torch.testing.assert_close(changed, SLOPES[within(h + step, 3)] + bias)
    with pytest.raises(IndexError, match=r"captured tensor 0 of shape \(3,\) is read at index"):
        change_score(traced, score, grid(*SHAPE))


def test_half_precision_and_integers_of_all_widths() -> None:
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int64,
    ):
        table = (torch.randn(9) * 50).abs().to(dtype)
        traced = trace_score(lambda s, b, h, q, k, table=table: s + table[k])
        _, changed, _ = on_device(traced, torch.zeros(SHAPE))
        assert torch.equal(changed, table.float().expand(SHAPE))


def test_derivatives_where_there_is_none_are_those_of_torch() -> None:
    one = torch.ones(1)

    def kinks(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        a = abs(s - one[0]) + torch.maximum(s, one[h]) * 2 + torch.minimum(s, one[h]) * 4
        return (
            a + torch.clamp(s, 0.0, 1.0) * 8 + torch.relu(s - 1.0) * 16 + torch.where(s > 0, s, 0)
        )

    leaves = [torch.ones(1, 1, 1, 1, dtype=torch.float64, requires_grad=True)]
    at = grid(1, 1, 1, 1)
    traced = trace_score(kinks)
    (wanted,) = torch.autograd.grad(kinks(leaves[0], *at).sum(), leaves)
    derivative = differentiate(traced.program)
    got = evaluate(traced, at, leaves[0].detach(), [derivative.slope], program=derivative.program)
    assert got[derivative.slope].item() == wanted.item() == 0 + 1 + 2 + 8 + 0 + 1


_GRADIENTS = """
template <class Load, class OfHead, class OfQuery, class OfKey>
__device__ void add(const Function::Args& args, float score, int factor, const OfHead& of_head,
                    const OfQuery& of_query, const OfKey& of_key, int batch, int head, int query,
                    int key) {
  const float value = Load::value(args, of_head, of_query, of_key, score, batch, head, query, key,
                                  static_cast<float>(key - query));
  const auto to = Load::place(args, of_head, of_query, of_key, batch, head, query, key);
  Load::add(args, to, factor * value);
}
template <class... Loads, class... Given>
__device__ void add_all(fa::attn::function::List<Loads...>, const Given&... given) {
  (add<Loads>(given...), ...);
}
extern "C" __global__ void evaluate(const Function::Args args, const float* in) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 2 * 3 * 6 * 9) return;
  const int key = i % 9, query = i / 9 % 6, head = i / 54 % 3, batch = i / 162;
  const auto of_head = Function::of_head(args, batch, head);
  const auto of_query = Function::of_query(args, of_head, batch, head, query);
  const auto of_key = Function::of_key(args, of_head, batch, head, key);
  add_all(Function::Loads{}, args, in[i], i % 5, of_head, of_query, of_key, batch, head, query,
          key);
}
"""


def sums_of(traced: Traced, how: How) -> tuple[Traced, list[Sum]]:
    """A program whose tensors all have gradients, and memory for these."""
    gathered = tuple(Gathered(slot, how) for slot in range(len(traced.tensors)))
    program = replace(traced.program, gathered=gathered)
    sums = [
        Sum(
            torch.zeros(each.shape),
            torch.zeros(each.numel(), DIGITS, dtype=torch.int64) if how is How.EXACT else None,
        )
        for each in traced.tensors
    ]
    return traced._replace(program=program), sums


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", [How.ADD, How.EXACT])
def test_gradients_of_captured_tensors(how: How, device: str) -> None:
    slopes, bias = SLOPES.double().requires_grad_(), BIAS.double().requires_grad_()
    score, at = torch.randn(SHAPE), grid(*SHAPE)

    def change(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * torch.sigmoid(slopes[h] * (k - q)) + bias[h, q, k] * slopes[h]

    factors = torch.arange(score.numel()).reshape(SHAPE) % 5
    wanted = torch.autograd.grad((change(score.double(), *at) * factors).sum(), (slopes, bias))
    traced, sums = sums_of(trace_score(change), how)
    session = Session(traced, device, sums)
    session.run(_GRADIENTS, session.args, session.memory.put(score.numpy()), threads=score.numel())
    for got, gradient in zip(session.totals(), wanted, strict=True):
        torch.testing.assert_close(got.float(), gradient.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_exact_sums_do_not_round(device: str) -> None:
    """Terms of very different sizes and of both signs cancel. Those of 2^63 are infinite."""
    terms = torch.tensor([2.0**62, 1.0, -(2.0**62), 2.0**-90, -1.5, 3e-20, 2.0**-126, -7.25])
    score, factors = torch.zeros(SHAPE), torch.zeros(3)
    flat = score.view(-1)
    flat[1 : 5 * len(terms) : 5] = terms  # of the first head, where the kernel has factor 1
    flat[56], flat[111] = -(2.0**63), math.nan
    traced, sums = sums_of(trace_score(lambda s, b, h, q, k: s * factors[h]), How.EXACT)
    session = Session(traced, device, sums)
    session.run(_GRADIENTS, session.args, session.memory.put(score.numpy()), threads=score.numel())
    exact = sum(Fraction(x) for x in terms.tolist() if abs(x) > 2.0**-96)
    first, second, third = session.totals()[0].tolist()
    assert (first, second) == (float(exact), -math.inf)
    assert math.isnan(third)


def test_masks_alone_need_no_score() -> None:
    traced = trace_mask(lambda b, h, q, k: SLOPES[h] * (q - k) > -1.0)
    seen, _, _ = on_device(traced, torch.zeros(SHAPE))
    _, h, q, k = grid(*SHAPE)
    assert torch.equal(seen, SLOPES[h.long()] * (q - k) > -1.0)

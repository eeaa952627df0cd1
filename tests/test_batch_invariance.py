# SPDX-License-Identifier: Apache-2.0
"""batch_invariant: the bits of a row do not depend on the rest of the batch, or on its chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash_attention import UnsupportedError, attention
from flash_attention.arch import ARCHES, MEASURED_ARCH, Arch
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.results import E4M3
from flash_attention.choose.choice import Rule
from flash_attention.choose.dense import CPU
from flash_attention.choose.rules import choose
from flash_attention.families.recipe import NO_DEVICE, Setting
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from ptx_emulator.machine.tensor_cores import matrix, wgmma
from tests.serving_steps import Step, assert_right, random_step

SM80 = ARCHES["sm_80"]
WINDOW = (("window", (70, 0)),)
Results = tuple[Tensor, Tensor]
Compute = Callable[[Call], Results]


@pytest.fixture(autouse=True)
def sums_do_not_depend_on_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator's products in float64, which adds up 16-bit numbers nearly exactly. BLAS of some
    CPUs adds up the rows at the end of a matrix in another order than the others."""

    def product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        sums: NDArray[Any] = np.matmul(left.astype(np.float64), right.astype(np.float64))
        return sums.astype(left.dtype)

    for module in (matrix, wgmma):
        monkeypatch.setattr(module, "stacked_product", product)


def rows_alone(step: Step, call: Call, index: int, first: int, end: int) -> Call:
    """A call of the queries from `first` to `end` of one sequence, as a chunk of their own."""
    start = sum(step.queries[:index])
    keys = step.keys[index] - (step.queries[index] - end)
    assert call.block_table is not None
    of_one: dict[str, Any] = {
        name: factor[index : index + 1]
        for name, factor in call.descales().items()
        if factor.ndim > 1
    }
    return call._replace(
        q=call.q[start + first : start + end],
        cu_seqlens_q=torch.tensor([0, end - first], dtype=torch.int32, device=call.q.device),
        max_seqlen_q=end - first,
        seqused_k=torch.tensor([keys], dtype=torch.int32, device=call.q.device),
        block_table=call.block_table[index : index + 1],
        **of_one,
    )


def pieces(step: Step, seed: int = 0) -> Iterator[tuple[int, int, int]]:
    """Some queries of every sequence: one, and a chunk. Those that see no key have no bits."""
    random = torch.Generator().manual_seed(seed)
    for index, (count, keys) in enumerate(zip(step.queries, step.keys, strict=True)):
        if count and keys >= count:
            first, other = sorted(torch.randint(0, count, (2,), generator=random).tolist())
            yield index, first, first + 1
            if other > first:
                yield index, first, other + 1


def assert_invariant(step: Step, call: Call, compute: Compute, most: int | None = None) -> Results:
    """Check that rows have the same bits alone and in the call. Returns the call's results."""
    out, lse = compute(call)
    for index, first, end in list(pieces(step))[:most]:
        start = sum(step.queries[:index])
        o, own_lse = compute(rows_alone(step, call, index, first, end))
        inside = slice(start + first, start + end)
        assert torch.equal(o, out[inside]), (index, first, end)
        assert torch.equal(own_lse, lse[:, inside]), (index, first, end)
    return out, lse


def emulated(arch: Arch) -> Compute:
    def compute(call: Call) -> Results:
        result = emulate_plan(Plan(call, arch=arch), call, Settings())
        assert list(map(str, result.findings)) == []
        assert result.lse is not None
        return result.output, result.lse

    return compute


STEPS = {
    "causal": Step((40, 1, 0, 3), (300, 33, 0, 140)),
    "d 128, pages of 64": Step((20, 1), (290, 200), d=128, page=64),
    "a window and sinks": Step((30, 2), (200, 150), keywords=WINDOW, sinks=True),
    "3 heads of a group, softcap": Step(
        (9, 1), (150, 70), heads=3, heads_k=1, keywords=(("causal", True), ("softcap", 15.0))
    ),
    "d 192": Step((5, 1), (150, 70), d=192, heads=2, heads_k=1),
}


def invariant(step: Step, place: str = "cpu", seed: int = 0) -> Call:
    """The call of a step. Scores of every third query are so large that its maxima often grow, and
    those of others seldom do."""
    call = step.call(place, seed)
    factors = 1 + 9 * (torch.arange(len(call.q), device=place) % 3 == 0)
    return call._replace(q=call.q * factors[:, None, None].to(call.q), batch_invariant=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_rows_of_hopper_kernels_have_the_same_bits(name: str) -> None:
    call = invariant(STEPS[name])
    assert_right(call, *assert_invariant(STEPS[name], call, emulated(MEASURED_ARCH)))


@pytest.mark.slow
def test_rows_of_sm_80_kernels_have_the_same_bits() -> None:
    step = Step((70, 1, 2), (150, 33, 70))
    assert_invariant(step, invariant(step), emulated(SM80))


@pytest.mark.slow
def test_rows_of_wide_heads_have_the_same_bits() -> None:
    step = Step((9, 1), (200, 70), d=320, heads=2, heads_k=1, page=64)
    assert_invariant(step, invariant(step), emulated(MEASURED_ARCH))


def mla(step: Step, place: str = "cpu") -> Call:
    call = invariant(step, place)
    return call._replace(v=call.k[..., :512])


MLA = Step((3, 1), (200, 70), d=576, heads=16, heads_k=1, page=64)


@pytest.mark.slow
def test_rows_of_mla_have_the_same_bits() -> None:
    assert_invariant(MLA, mla(MLA), emulated(MEASURED_ARCH))


def of_8_bits(step: Step, place: str = "cpu", q: bool = True) -> Call:
    call = invariant(step, place)
    factors = torch.rand(len(step.queries), step.heads_k, device=place) + 0.5
    call = call._replace(k=call.k.to(E4M3), v=call.v.to(E4M3), k_descale=factors, v_descale=factors)
    return call._replace(q=call.q.to(E4M3), q_descale=factors) if q else call


@pytest.mark.slow
@pytest.mark.parametrize("q", [True, False])
def test_rows_of_8_bits_have_the_same_bits(q: bool) -> None:
    step = Step((20, 1), (200, 70), page=64, d=128)
    assert_invariant(step, of_8_bits(step, q=q), emulated(MEASURED_ARCH))


@pytest.mark.parametrize("arch", [MEASURED_ARCH, SM80], ids=lambda arch: arch.name)
@pytest.mark.parametrize("d", [32, 64, 80, 96, 128, 160, 192, 224, 256])
def test_one_config_is_for_all_lengths_and_powers_of_two_in_pages(d: int, arch: Arch) -> None:
    setting, configs = Setting(arch, 132, device=NO_DEVICE), set()
    for queries in ((1,), (1,) * 40, (3,) * 8, (700,), (1500, 1)):
        for page in (16, 128):
            step = Step(queries, tuple(max(70, n) for n in queries), page, 2, 1, d)
            problem, views = check_call(invariant(step), CPU)
            choice = choose(problem, setting, views)
            assert choice.rule is Rule.BATCH_INVARIANT
            recipe = choice.recipe(problem, views)
            assert len(recipe.steps) == 1
            assert recipe.num_splits == 0
            configs.add(choice.config)
    assert len(configs) == 1


def test_dense_and_packed_queries_have_one_config() -> None:
    packed = invariant(Step((2, 2), (99, 99)))
    q = packed.q.view(2, 2, *packed.q.shape[1:])
    dense = packed._replace(q=q, cu_seqlens_q=None, max_seqlen_q=None)
    q, k, v = (torch.randn(2, 99, 4, 64).bfloat16() for _ in "qkv")
    whole = Call(q, k, v, batch_invariant=True)
    configs = {Plan(call, arch=MEASURED_ARCH).config for call in (packed, dense)}
    assert len(configs) == 1
    assert Plan(whole, arch=MEASURED_ARCH).choice.rule is Rule.BATCH_INVARIANT


def test_a_plan_serves_all_lengths() -> None:
    plan = Plan(invariant(Step((1, 1), (500, 7))), arch=MEASURED_ARCH)
    for queries in ((1,), (3000,), (1,) * 200):
        other = invariant(Step(queries, tuple(max(70, n) for n in queries)))
        resized = plan.resized(other)
        assert resized is not None
        assert resized.recipe.steps[0].unit == plan.recipe.steps[0].unit


def test_it_chooses_the_kernel_alone() -> None:
    call = invariant(STEPS["causal"])
    with pytest.raises(UnsupportedError, match="batch_invariant is given with split_keys=64"):
        Plan(call._replace(split_keys=64), arch=MEASURED_ARCH)
    with pytest.raises(UnsupportedError, match="batch_invariant is given with config='"):
        Plan(call, "rung:16", arch=MEASURED_ARCH)
    with pytest.raises(UnsupportedError, match="batch_invariant is 'yes'; pass True or False"):
        Plan(call._replace(batch_invariant="yes"), arch=MEASURED_ARCH)  # type: ignore[arg-type]


def on_gpu(call: Call) -> Results:
    return attention(*call[:3], **call.keywords(), return_lse=True)


@pytest.mark.gpu
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_random_steps_have_the_same_bits(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        step = random_step(seed)
        if step.keywords[0][0] == "window":  # a chunk's last query then sees keys behind it
            step = replace(step, keywords=(("window", (step.keywords[0][1][0], 0)),))
        call = invariant(step, "cuda", seed)
        try:
            assert_right(call, *assert_invariant(step, call, on_gpu, most=6))
        except AssertionError as error:
            raise AssertionError(f"step {seed}: {step}") from error


WIDE = Step((90, 1, 4), (3000, 70, 900), d=512, heads=2, heads_k=1, page=64)
CHUNK = Step((300, 1, 4), (3000, 70, 900), page=64, d=128)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("step", "make"),
    [
        pytest.param(WIDE, invariant, id="wide heads"),
        pytest.param(replace(MLA, queries=(3, 1), keys=(3000, 700)), mla, id="MLA"),
        pytest.param(CHUNK, of_8_bits, id="8 bits"),
    ],
)
def test_other_kernels_have_the_same_bits(step: Step, make: Callable[[Step, str], Call]) -> None:
    assert_invariant(step, make(step, "cuda"), on_gpu)


@pytest.mark.gpu
def test_pages_and_a_graph_change_no_bits() -> None:
    step = CHUNK
    call = invariant(step, "cuda")
    out, lse = on_gpu(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = on_gpu(call)
    graph.replay()
    assert torch.equal(replayed[0], out)
    assert torch.equal(replayed[1], lse)
    assert call.block_table is not None
    used = torch.arange(call.block_table.shape[1] * step.page, device="cuda") < step.keys[0]
    k, v = (x[call.block_table[0].long()].flatten(0, 1)[used] for x in (call.k, call.v))
    dense = attention(call.q[None, :300], k[None], v[None], causal=True, batch_invariant=True)
    assert torch.equal(dense[0], out[:300])

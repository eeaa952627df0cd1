# SPDX-License-Identifier: Apache-2.0
"""The largest score of every head, of the kernels of both families, against its definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention, emulate, forward
from flash_attention.arch import ARCHES
from flash_attention.call.dtype import DType
from flash_attention.families.config import KernelConfig
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from tests.feature_cases import Case, MadeCase, selected
from tests.gate import EXHAUSTIVE

CAUSAL = Case("causal", 150, 420, causal=True)
PACKED = Case("packed", (40, 0, 90, 70), (170, 10, 50, 300), causal=True, padding=9)
WINDOW = Case("a window, softcap and sinks", 200, 330, batch=2, window=(190, 5), softcap=0.5)
WINDOW = replace(WINDOW, sinks=True, dropout_p=0.3)
FULL = Case("full, d 128", 100, 500, 128, 128, 2, 2, batch=2)
EXACT = Case("no predicates", 128, 256, 128, 128, 2, 2)
WIDE = Case("d 256", 100, 290, 256, 192, 2, 1, causal=True)
KEYLESS = Case("rows without keys", 200, 90, heads=2, heads_k=2, causal=True)
FORMS = [CAUSAL, PACKED, WINDOW, FULL, EXACT, WIDE, KEYLESS]


def entries(made: MadeCase) -> Iterator[tuple[Tensor, Tensor]]:
    """q and k of every sequence, in float64."""
    for tensor, of in ((made.q, "q"), (made.k, "k")):
        starts = made.keywords.get(f"cu_seqlens_{of}")
        whole = tensor.double()
        if starts is None:
            parts = list(whole)
        else:
            parts = [whole[a:b] for a, b in itertools.pairwise(starts.tolist())]
        if of == "q":
            queries = parts
    yield from zip(queries, parts, strict=True)


def by_definition(made: MadeCase, *, masked: bool = True) -> Tensor:
    """The largest score of every head, by the definition of attention."""
    case = made.case
    largest = [torch.full((case.heads,), -torch.inf, dtype=torch.float64)]
    left, right = case.window or (None, None)
    for q, k in entries(made):
        if not (len(q) and len(k)):
            continue
        k = k.repeat_interleave(case.heads // case.heads_k, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * (case.softmax_scale or case.d_qk**-0.5)
        place = torch.arange(len(q))[:, None] + len(k) - len(q)
        key = torch.arange(len(k))
        hidden = torch.zeros(len(q), len(k), dtype=torch.bool)
        if case.causal:
            hidden |= key > place
        if left is not None:
            hidden |= key < place - left
        if right is not None:
            hidden |= key > place + right
        scores = scores.cpu().masked_fill(hidden & masked, -torch.inf)
        largest.append(scores.amax((1, 2)))
    return torch.stack(largest).amax(0)


def near(found: Tensor, exact: Tensor) -> None:
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double().cpu(), exact, rtol=1e-5, atol=1e-5)


def found_by(made: MadeCase, arch: str) -> Tensor:
    """The maxima that a kernel of an architecture returns. The emulator finds nothing else."""
    config = Plan(made.call(), arch=ARCHES[arch]).config
    found: Tensor
    out, lse, found = forward(
        config, made.q, made.k, made.v, return_lse=True, return_max=True, **made.arguments
    )
    if not made.case.dropout_p:
        made.assert_right(out, lse)
    return found


def tempted(asked: Case, *args: Any) -> MadeCase:
    """A case with scores that are the largest of all, of keys that the query does not see."""
    made = asked.make(*args)
    q, k = (made.q, made.k) if made.q.ndim == 3 else (made.q[0], made.k[0])
    k[-1] = 6 * q[0, :: asked.heads // asked.heads_k]
    seen, all_of_them = by_definition(made), by_definition(made, masked=False)
    if asked is not PACKED:  # where these are scores of no sequence
        assert bool((all_of_them > seen + 1)[:: asked.heads // asked.heads_k].all())
    return made


def test_limits_follow_the_offsets_of_all_rows_of_a_warp() -> None:
    """The scores of row 0 grow so much in the second block that all rows of its warp get other
    offsets. Row 1 has the largest score of all in the third, and row 2 that of the first."""
    config = HopperForwardKernelConfig(
        *(DType.BF16, 64, 1, 64, 2),
        tma=True,
        specialised=True,
        rescale_threshold=8,
        stale_max=True,
    )
    q, k = torch.zeros(1, 64, 1, 64), torch.zeros(1, 256, 1, 64)
    q[0, :, 0, 3] = q[0, 0, 0, 0] = q[0, 1, 0, 1] = q[0, 2, 0, 2] = 1
    q[0, :3, 0, 3] = 0
    of_blocks = [[-10, 4, -5, -20], [-10, 8, -5, -20], [-10, 4, -5, -20], [-60, -10, 5, -20]]
    k[0, :, 0, :4] = torch.tensor(of_blocks).repeat_interleave(64, 0)  # the last is visited first
    q, k = q.bfloat16(), k.bfloat16()
    *_, found = forward(config, q, k, k, softmax_scale=1.0, return_lse=True, return_max=True)
    near(found, torch.tensor([8.0]).double())


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
@pytest.mark.parametrize("asked", [CAUSAL, PACKED, WINDOW], ids=lambda c: c.name)
def test_hidden_scores_do_not_count(asked: Case, arch: str) -> None:
    made = tempted(asked)
    near(found_by(made, arch), by_definition(made))


def negative(asked: Case, *args: Any) -> MadeCase:
    """A case whose scores are all negative, unlike those of rows of no query."""
    made = asked.make(*args)
    made.q.abs_()
    made.k.abs_().neg_()
    return made


@pytest.mark.parametrize(
    ("asked", "arch"),
    [
        pytest.param(c, a, marks=() if n % 2 == t else EXHAUSTIVE, id=f"{c.name}-{a}")
        for n, c in enumerate(FORMS)
        for t, a in enumerate(["sm_90", "sm_80"])
    ],
)
def test_negative_maxima_are_those_of_rows_with_queries(asked: Case, arch: str) -> None:
    made = negative(asked)
    exact = by_definition(made)
    assert bool((exact < 0).all())
    near(found_by(made, arch), exact)


def peak_at(key: int, size: float, dtype: torch.dtype = torch.float16) -> MadeCase:
    """Scores of about 1, but for one key, whose largest is `size` in every head."""
    made = Case("one large key", 70, 520, 128, 128, 2, 1).make("cpu", dtype)
    q, k = made.q[0], made.k[0]
    q[33] = q[33].abs() / 4
    largest = float((q.double() @ q[33, 0].double()).amax()) * 128**-0.5
    k[key] = q[33, 0] * (size / largest)
    return made


@pytest.mark.parametrize("size", [8.0, 300.0, 3e4], ids=["seen in P", "overflows P", "huge"])
@pytest.mark.parametrize("key", [10, 200, 519])
def test_a_block_without_row_maxima_has_its_largest_score_seen(key: int, size: float) -> None:
    made = peak_at(key, size)
    config = selected(made)
    assert isinstance(config, HopperForwardKernelConfig)
    assert config.stale_max
    near(found_by(made, "sm_90"), by_definition(made))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("schedule", ["random", "depth-first"])
def test_other_orders_of_the_warps_give_the_same_bits(arch: str, schedule: str) -> None:
    made = replace(CAUSAL, batch=2).make()
    config = selected(made, arch)
    runs = [
        emulate(config, made.q, made.k, made.v, return_max=True, schedule=s, **made.arguments)
        for s in ("lockstep", schedule)
    ]
    assert not any(run.findings for run in runs)
    first, second = (run.max_scores for run in runs)
    assert first is not None
    assert second is not None
    near(first, by_definition(made))
    assert torch.equal(first, second)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_scores_that_are_no_numbers(arch: str) -> None:
    made = Case("special", 70, 90, heads=5, heads_k=5).make()
    q, k = made.q[0], made.k[0]
    q[:, 0] = 0
    q[:, 4] = k[:, 4] = 0
    q[:, 4, 0], k[:, 4, 0] = 2.0**-75, -(2.0**-74)  # scaled, the product is rounded to -0
    k[5, 1] = torch.nan  # which does not count
    q[:, 2] = q[:, 2].abs()
    k[:, 2] = -torch.inf
    k[7, 3, 0], q[9, 3, 0] = torch.inf, 1
    config = selected(made, arch)
    _, found = forward(config, made.q, made.k, made.v, return_max=True)
    assert found[0] == 0
    assert found[2:].tolist() == [-torch.inf, torch.inf, 0]
    k[5, 1] = k[6, 1]
    near(found[1], by_definition(made)[1])


def test_nothing_to_compute_has_no_maximum() -> None:
    made = CAUSAL.make()
    none = made.k[:, :0]
    for config in (None, selected(made, "sm_80"), selected(made, "sm_90")):
        out, lse, found = attention(
            made.q, none, none, config=config, return_lse=True, return_max=True
        )
        assert found.tolist() == [-torch.inf] * CAUSAL.heads
        assert not out.any()
        assert bool((lse == -torch.inf).all())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_that_return_no_maxima_know_nothing_of_them(arch: str) -> None:
    made = CAUSAL.make()
    for asked in (True, False):
        recipe = Plan(made.call(return_max=asked), arch=ARCHES[arch]).recipe
        assert recipe.features.max_score is asked
        (step,) = recipe.steps
        assert ("max_score::PerHead" in step.unit.source) is asked
        assert ("max_score::None" in step.unit.source) is not asked


def refused(message: str, config: KernelConfig, made: MadeCase, **more: Any) -> None:
    with pytest.raises(UnsupportedError, match=message):
        plan_for(made.call(return_max=True)._replace(**more), config)


@pytest.mark.usefixtures("no_compile")
def test_kernels_without_maxima_refuse_them() -> None:
    made = replace(CAUSAL, d_qk=512, d_v=512).make()
    wide = HopperWideKernelConfig(DType.BF16, 512, 512)
    refused("return_max is given, and HopperWide.* have no maxima; leave it out", wide, made)
    with pytest.raises(UnsupportedError, match=r"return_max is given, and .* up to 256"):
        Plan(made.call(return_max=True), arch=ARCHES["sm_90"])
    made = CAUSAL.make()
    config = selected(made)
    assert isinstance(config, HopperForwardKernelConfig)
    used = torch.tensor([200], dtype=torch.int32)
    one_each = replace(
        config, tile_order=TileOrder.ONE_EACH, own_output=False, group_mib=0, prefetch_q=False
    )
    refused("that split keys .* have no maxima", one_each, made, seqused_k=used)
    pages = torch.zeros(4, 64, 2, 64, dtype=torch.bfloat16)
    table = torch.zeros(1, 4, dtype=torch.int32)
    paged: dict[str, Any] = {"k": pages, "v": pages, "block_table": table, "seqused_k": used}
    refused("no maxima with block_table; leave it out", config, made, **paged)
    for more in ({"split_keys": 128}, {"batch_invariant": True}):
        (name,) = more
        refused(f"return_max is given, and so is {name}; .* leave one", config, made, **more)


def test_few_queries_of_many_keys_are_not_split() -> None:
    made = Case("decoding", 1, 3000, 128, 128, 8, 1).make()
    plan = Plan(made.call(return_max=True), arch=ARCHES["sm_90"])
    assert plan.recipe.num_splits == 0
    assert Plan(made.call(), arch=ARCHES["sm_90"]).recipe.num_splits > 0


LONG = [
    Case("full", 1000, 3330, 128, 128, 8, 2, batch=2),
    Case("causal", 4000, 4000, 128, 128, 4, 4, batch=2, causal=True, sinks=True),
    Case("causal, d 64", 2048, 2048, 64, 64, 8, 1, causal=True),
    Case("causal, d 256", 1500, 1500, 256, 256, 2, 1, causal=True),
    Case("a window", 3000, 3000, 120, 104, 4, 2, window=(900, 30), softcap=2.0),
    Case("packed", (700, 0, 1, 1290), (600, 10, 900, 2000), 128, 128, causal=True, padding=7),
    Case("few queries", 3, 5000, 128, 128, 16, 2, batch=2),
]


@pytest.mark.gpu
@pytest.mark.parametrize("asked", LONG, ids=lambda asked: asked.name)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_maxima_on_a_gpu_are_right_and_always_the_same(
    asked: Case, arch: str, dtype: torch.dtype
) -> None:
    for made in (asked.make("cuda", dtype), negative(asked, "cuda", dtype)):
        config = Plan(made.call(return_max=True), arch=ARCHES[arch]).config
        exact = by_definition(made)
        runs = [
            forward(config, made.q, made.k, made.v, return_max=True, **made.arguments)[-1]
            for _ in range(5)
        ]
        near(runs[0], exact)
        assert all(torch.equal(run, runs[0]) for run in runs)


@pytest.mark.gpu
def test_every_replay_of_a_graph_starts_anew() -> None:
    q, k, v = (torch.randn(1, 512, 2, 128, dtype=torch.bfloat16, device="cuda") for _ in "qkv")
    attention(q, k, v, return_max=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, found = attention(q, k, v, return_max=True)
    for factor in (1.0, 0.25, 4.0):
        q.mul_(factor)
        graph.replay()
        assert torch.equal(found, attention(q, k, v, return_max=True)[1])

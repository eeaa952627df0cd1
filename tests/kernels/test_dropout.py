# SPDX-License-Identifier: Apache-2.0
"""Dropout of the kernels: both passes of both families drop the weights that the reference drops.

Small scores make all weights of a row alike, so that an error of one weight shows in the result.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import UnsupportedError, attention, dropout_mask, forward
from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Wanted
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.families.config import KernelConfig
from flash_attention.families.parse import parse_kernel_config
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.heuristic import heuristic
from flash_attention.families.sm90.backward.slots import Derivative, Schedule
from flash_attention.families.sm90.forward.config import HopperForwardKernelConfig
from flash_attention.families.sm90.forward.tile_order import TileOrder
from flash_attention.families.sm90.wide.config import HopperWideKernelConfig
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradients import evaluate_gradients
from tests.backward_cases import assert_right, backward_of, emulated_backward
from tests.feature_cases import Case, MadeCase, emulated, selected
from tests.gate import EXHAUSTIVE

ALIKE = 0.02  # a softmax scale that leaves the weights of a row alike
MOST = 0.01  # of the largest number, an error of results whose weights are rounded to 16 bits


def alike(case: Case) -> Case:
    return replace(case, softmax_scale=ALIKE)


CAUSAL = alike(Case("causal", 150, 200, causal=True, dropout_p=0.3))
PACKED = alike(Case("packed", (40, 0, 90), (70, 10, 50), causal=True, dropout_p=0.7))
WINDOW = alike(Case("a window", 100, 130, batch=2, window=(60, 5), sinks=True, dropout_p=0.15))
WINDOW = replace(WINDOW, name="window, softcap and sinks", softcap=5.0)
EXACT = alike(Case("no predicates", 128, 128, 128, 128, 2, 2, dropout_p=0.5))
WIDE = alike(Case("d 256", 100, 90, 256, 256, 2, 1, dropout_p=0.4))
DETERMINISTIC = replace(CAUSAL, name="deterministic")


def near(mine: Tensor | None, exact: Tensor | None) -> None:
    assert mine is not None
    assert exact is not None
    error = (mine.double() - exact).abs().max()
    assert float(error) <= MOST * float(exact.abs().max())


def assert_right_output(made: MadeCase, out: Tensor, lse: Tensor | None) -> None:
    exact, exact_lse = evaluate(made.call(), torch.float64, lse=True)
    near(out, exact)
    assert lse is not None
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)


def assert_right_gradients(call: BackwardCall, gradients: tuple[Tensor | None, ...]) -> None:
    exact = evaluate_gradients(call, torch.float64)
    for name, is_wanted, mine, other in zip(
        Wanted._fields, call.wanted, gradients, exact, strict=True
    ):
        assert (mine is not None) == is_wanted, name
        if is_wanted:
            near(mine, other)


FORWARD: list[tuple[str, Case, Any]] = [
    ("sm_90", CAUSAL, ()),
    ("sm_90", PACKED, EXHAUSTIVE),
    ("sm_90", WINDOW, ()),
    ("sm_90", WIDE, EXHAUSTIVE),
    ("sm_80", CAUSAL, ()),
    ("sm_80", EXACT, EXHAUSTIVE),
    ("sm_80", PACKED, EXHAUSTIVE),
]


@pytest.mark.parametrize(
    ("arch", "asked"),
    [pytest.param(arch, c, marks=m, id=f"{arch}-{c.name}") for arch, c, m in FORWARD],
)
def test_an_emulated_forward_pass_drops_what_the_reference_drops(arch: str, asked: Case) -> None:
    made = asked.make()
    config = selected(made, arch)
    out, lse = forward(config, made.q, made.k, made.v, return_lse=True, **made.arguments)
    assert_right_output(made, out, lse)


def hopper(d_head: int, **fields: Any) -> HopperBackwardKernelConfig:
    """The config of the backward pass that long problems get, or with other fields."""
    forward = Problem(1, 4096, 4096, 4, 2, d_head, d_head, torch.bfloat16, ALIKE, causal=True)
    config = heuristic(BackwardProblem.of_pass(forward), ARCHES["sm_90"])
    assert isinstance(config, HopperBackwardKernelConfig)
    return replace(config, **fields)


SERIAL: dict[str, Any] = {"schedule": Schedule.SERIAL, "derivative": Derivative.EXACT, "B_r": 64}
BACKWARD: list[tuple[str, Case, dict[str, Any] | None, Any]] = [
    ("sm_90", CAUSAL, None, ()),
    ("sm_90", replace(CAUSAL, name="in place", d_qk=128, d_v=128), {}, ()),
    ("sm_90", replace(CAUSAL, name="serial, exact"), SERIAL, EXHAUSTIVE),
    ("sm_90", PACKED, {}, EXHAUSTIVE),
    ("sm_90", WINDOW, None, EXHAUSTIVE),
    ("sm_90", WIDE, None, ()),
    ("sm_80", CAUSAL, None, ()),
    ("sm_80", DETERMINISTIC, None, EXHAUSTIVE),
    ("sm_80", replace(EXACT, name="two columns of warps"), None, EXHAUSTIVE),
    ("sm_80", PACKED, None, EXHAUSTIVE),
]


@pytest.mark.parametrize(
    ("arch", "asked", "fields"),
    [pytest.param(a, c, f, marks=m, id=f"{a}-{c.name}") for a, c, f, m in BACKWARD],
)
def test_an_emulated_backward_pass_drops_what_the_reference_drops(
    arch: str, asked: Case, fields: dict[str, Any] | None
) -> None:
    wanted, deterministic = Wanted(dsinks=asked.sinks), asked is DETERMINISTIC
    call = backward_of(asked.make(), wanted, deterministic=deterministic)
    config: KernelConfig = Plan(call, arch=ARCHES[arch]).config
    if fields is not None:
        config = hopper(asked.d_qk, **fields)
    assert_right_gradients(call, emulated_backward(call, config, arch=arch).gradients)


def test_heads_that_are_split_drop_what_the_reference_drops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = "flash_attention.families.sm90.backward.family"
    monkeypatch.setattr(f"{family}.head_splits", lambda *_: 2)
    asked = replace(CAUSAL, seq_q=70, seq_k=90, heads=3, heads_k=1, batch=2)
    call = backward_of(asked.make())
    plan = Plan(call, arch=ARCHES["sm_90"])
    assert plan.recipe.arguments.head_splits == 2
    assert_right_gradients(call, emulated_backward(call, plan.config, arch="sm_90").gradients)


SEVERAL_TILES = alike(
    Case("several tiles", 300, 400, 64, 64, 3, 1, batch=2, causal=True, dropout_p=0.3)
)
EVEN = alike(Case("packed", (140, 0, 90), (170, 10, 250), 64, 64, causal=True, dropout_p=0.6))
SHARED = "hopper(BF16, 64, {}, {}, 2): tma+specialised+overlap+lazy_8+stale_max+dynamic_4{}"
TALL, SHORT = SHARED.format(2, 80, "+ping_pong+narrow_32"), SHARED.format(1, 176, "")


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        pytest.param(SEVERAL_TILES, TALL, id="5 and 2 tiles of 16 keys"),
        pytest.param(EVEN, SHORT, id="11 tiles"),
        pytest.param(EVEN, TALL, id="packed, 5 and 2 tiles", marks=EXHAUSTIVE),
        pytest.param(SEVERAL_TILES, SHORT, id="causal, 11 tiles", marks=EXHAUSTIVE),
    ],
)
def test_blocks_of_all_sizes_drop_what_the_reference_drops(asked: Case, config: str) -> None:
    made = asked.make()
    result = emulated(made, parse_kernel_config(config), "random")
    assert_right_output(made, result.output, result.lse)


@pytest.mark.parametrize(
    ("asked", "deterministic"), [(EVEN, False), pytest.param(SEVERAL_TILES, True, marks=EXHAUSTIVE)]
)
def test_several_tiles_of_a_backward_pass_drop_what_the_reference_drops(
    asked: Case, deterministic: bool
) -> None:
    call = backward_of(asked.make(), deterministic=deterministic)
    plan = Plan(call, arch=ARCHES["sm_90"])
    assert_right_gradients(call, emulated_backward(call, plan.config, arch="sm_90").gradients)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_without_dropout_the_kernels_are_those_that_know_nothing_of_it(arch: str) -> None:
    with_it, without = CAUSAL.make(), replace(CAUSAL, dropout_p=0.0).make()
    for made, drops in ((with_it, True), (without, False)):
        call, backward = made.call(), backward_of(made)
        for plan in (Plan(call, arch=ARCHES[arch]), Plan(backward, arch=ARCHES[arch])):
            assert plan.recipe.features.dropout is drops
            sources = [step.unit.source for step in plan.recipe.steps]
            assert any("dropout::Philox" in source for source in sources) is drops
            assert any("dropout::None" in source for source in sources) is not drops


def refused(message: str, config: KernelConfig, made: MadeCase, **more: Any) -> None:
    with pytest.raises(UnsupportedError, match=message):
        plan_for(made.call(**more), config)


@pytest.mark.usefixtures("no_compile")
def test_kernels_without_dropout_refuse_it() -> None:
    made = replace(CAUSAL, d_qk=512, d_v=512).make()
    refused(
        "HopperWideKernelConfig kernels have no dropout",
        HopperWideKernelConfig(DType.BF16, 512, 512),
        made,
    )
    for arch in ("sm_80", "sm_90"):
        wide = r"dropout_p is 0\.3, and HopperForward.* kernels have head dimensions up to 256"
        with pytest.raises(UnsupportedError, match=wide):
            Plan(made.call(), arch=ARCHES[arch])
    config = selected(CAUSAL.make())
    assert isinstance(config, HopperForwardKernelConfig)
    used = torch.tensor([200], dtype=torch.int32)
    one_each = replace(
        config, tile_order=TileOrder.ONE_EACH, own_output=False, group_mib=0, prefetch_q=False
    )
    asked = "^causal=True, a length of its own for every sequence, dropout are asked for"
    refused(f"{asked}, .* that split keys .* no dropout", one_each, CAUSAL.make(), seqused_k=used)
    pages = torch.zeros(4, 64, 2, 64, dtype=torch.bfloat16)
    table = torch.zeros(1, 4, dtype=torch.int32)
    paged: dict[str, Any] = {"k": pages, "v": pages, "block_table": table, "seqused_k": used}
    q = CAUSAL.make()
    with pytest.raises(UnsupportedError, match=r"no dropout with block_table; pass 0\.0"):
        plan_for(q.call()._replace(**paged), config)
    with pytest.raises(UnsupportedError, match=r"no dropout with block_table; pass 0\.0"):
        Plan(q.call()._replace(**paged), arch=ARCHES["sm_90"])


LONG = [
    Case("full", 1000, 333, 128, 128, 8, 2, batch=2, dropout_p=0.1),
    Case("full, d 64", 2048, 2048, 64, 64, 4, 4, dropout_p=0.5),
    Case("causal", 1000, 1500, 128, 128, 4, 4, batch=2, causal=True, sinks=True, dropout_p=0.2),
    Case("causal, d 64", 2048, 2048, 64, 64, 8, 1, causal=True, dropout_p=0.9),
    Case("causal, d 256", 1500, 1500, 256, 256, 2, 1, causal=True, dropout_p=0.1),
    Case("a window", 1000, 1000, 120, 104, 4, 2, window=(100, 30), softcap=20.0, dropout_p=0.3),
    Case("packed", (700, 0, 1, 129), (600, 10, 900, 0), 128, 128, causal=True, dropout_p=0.1),
    Case("few queries", 3, 5000, 128, 128, 16, 2, batch=2, dropout_p=0.1),
]


@pytest.mark.gpu
@pytest.mark.parametrize("asked", LONG, ids=lambda asked: asked.name)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_both_passes_on_a_gpu_are_right(asked: Case, arch: str, dtype: torch.dtype) -> None:
    made = asked.make("cuda", dtype)
    config = Plan(made.call(), arch=ARCHES[arch]).config
    out, lse = forward(config, made.q, made.k, made.v, return_lse=True, **made.arguments)
    made.assert_right(out, lse)
    for deterministic in (False, True):
        call = backward_of(made, Wanted(dsinks=asked.sinks), deterministic=deterministic)
        backward = Plan(call, arch=ARCHES[arch]).config
        assert_right(plan_for(call, backward).run(call), call)
        even = backward_of(
            alike(asked).make("cuda", dtype), call.wanted, deterministic=deterministic
        )
        assert_right_gradients(even, plan_for(even, backward).run(even))


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.004, 0.3, 0.996])
def test_a_gpu_drops_bit_by_bit_what_the_mask_says(p: float) -> None:
    """In both passes: a row of the output, or of dV, is a row of dropped weights."""
    batch, heads, n, d = 2, 3, 1024, 128
    random = torch.Generator("cuda").manual_seed(1)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda", "generator": random}
    q, k = (torch.randn(batch, n, heads, d, **options) for _ in "qk")
    state = torch.randint((1 << 63) - 1, (2,), device="cuda", generator=random)
    mask = dropout_mask(state, p, (batch, heads, n, n))
    unit = torch.eye(d, dtype=q.dtype, device="cuda")
    for first in range(0, n, d):
        v, do = (torch.zeros_like(q).requires_grad_() for _ in range(2))
        with torch.no_grad():
            v[:, first : first + d] = do[:, first : first + d] = unit[:, None]
        out = attention(q, k, v, softmax_scale=ALIKE, dropout_p=p, rng_state=state)
        (dv,) = torch.autograd.grad(out, v, do.detach())
        assert torch.equal(out.transpose(1, 2) != 0, mask[..., first : first + d])
        assert torch.equal(dv.transpose(1, 2) != 0, mask[:, :, first : first + d].mT)


@pytest.mark.gpu
def test_every_replay_of_a_graph_drops_others_and_the_same_in_both_passes() -> None:
    q, k, v = (
        torch.randn(1, 256, 2, 128, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for _ in "qkv"
    )
    with torch.no_grad():
        v.zero_()
        v[:, :128] = torch.eye(128, dtype=v.dtype, device="cuda")[:, None]
    do = v.detach().clone()

    def step() -> tuple[Tensor, Tensor]:
        out = attention(q, k, v, softmax_scale=ALIKE, dropout_p=0.5)
        return out, torch.autograd.grad(out, v, do)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, dv = step()
    seen = []
    for _ in range(3):
        graph.replay()
        corner = out[:, :128].transpose(1, 2) != 0
        assert torch.equal(corner.mT, dv[:, :128].transpose(1, 2) != 0)
        seen.append(corner.clone())
    share = [float((a != b).float().mean()) for a, b in itertools.pairwise(seen)]
    assert share == pytest.approx([0.5, 0.5], abs=0.02)

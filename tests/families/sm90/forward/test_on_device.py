# SPDX-License-Identifier: Apache-2.0
"""Stream-K on the device: sequences of any lengths, whose keys the kernel itself splits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.compile import compile_kernel
from flash_attention.families.sm90.forward.features import SplitKind
from flash_attention.launch import device
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from flash_attention_workbench.mends import NUMBERS
from ptx_emulator import SCHEDULES
from ptx_emulator.machine import scheduler
from ptx_emulator.report.mends import DEADLOCK
from tests.devices import on_devices, ran
from tests.emulator.edits import Edit
from tests.families.sm90.planted import kinds_caught
from tests.serving_steps import Step, assert_right, random_step

pytestmark = pytest.mark.slow  # left out of `make quick`


@pytest.fixture(autouse=True)
def more_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a sequence has many parts in the emulator."""
    monkeypatch.setattr(device, "EMULATED_SMS", 6)


WINDOW = (("window", (70, 3)),)
STEPS = {
    "decodes": Step((1, 1, 1), (500, 1, 77)),
    "a long sequence": Step((1,), (3000,), page=64, heads_k=1),
    "forty sequences": Step((1,) * 40, tuple(range(3, 83, 2)), heads_k=4),
    "no queries, no keys": Step((1, 0, 1, 0, 1), (300, 40, 0, 0, 200), sinks=True),
    "speculative": Step((4, 2, 4), (300, 99, 4), d=128, page=32),
    "padded": Step((2, 2, 2), (700, 2, 65), padded=True, heads=6, page=8),
    "pages of 1": Step((1, 1), (40, 9), page=1),
    "pages of 3, 7 heads of a group": Step((1, 2), (90, 300), page=3, heads=14),
    "pages of 256, d 256": Step((1, 1), (600, 256), page=256, d=256),
    "a window": Step((1, 3, 1), (900, 300, 64), keywords=WINDOW, sinks=True),
    "everything at once": Step(
        (3, 1, 2), (333, 500, 2), d=128, sinks=True, keywords=(*WINDOW, ("softcap", 15.0))
    ),
    "a chunk": Step((40, 1, 0, 3), (1100, 33, 0, 500), d=128),
    "chunks with a wide window": Step(
        (70, 1, 20), (300, 700, 1500), page=64, keywords=(("window", (1100, 3)),)
    ),
    "a padded chunk, 3 heads of a group": Step(
        (30, 30), (300, 1100), heads=3, heads_k=1, padded=True
    ),
}


def planned(call: Call) -> Plan:
    if call.q.is_cuda:
        return Plan(call)  # a GPU has more multiprocessors, and may not need to split
    plan = Plan(call, arch=MEASURED_ARCH)
    assert plan.recipe.features.splits is SplitKind.ON_DEVICE  # type: ignore[attr-defined]
    return plan


def assert_computed_right(call: Call, schedule: str = SCHEDULES[0]) -> None:
    assert_right(call, *ran(planned(call), call, Settings(schedule)))


@pytest.mark.parametrize(("name", "device"), on_devices(STEPS, mark=pytest.mark.gpu))
def test_steps_are_right(name: str, device: str, schedule: str) -> None:
    assert_computed_right(STEPS[name].call(device), schedule)


@pytest.mark.exhaustive
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["no queries, no keys", "a chunk"])
def test_they_are_right_in_every_order_of_warps(name: str, schedule: str) -> None:
    assert_computed_right(STEPS[name].call(), schedule)


def test_contiguous_keys_are_split_too() -> None:
    call = STEPS["decodes"].call()
    k, v = (torch.randn(3, 500, 2, 64).bfloat16() for _ in range(2))
    assert_computed_right(call._replace(k=k, v=v, block_table=None))


def test_a_cache_of_k_and_v_together_is_read_in_place() -> None:
    step = STEPS["speculative"]
    call = step.call()
    both = torch.cat([call.k, call.v], dim=-1).transpose(1, 2).contiguous().transpose(1, 2)
    k, v = both.split(step.d, dim=-1)
    assert k.stride() == v.stride() != call.k.stride()
    assert_computed_right(call._replace(k=k, v=v))


ORDER, OUTPUT = "sm90/tile_order/on_device.cuh", "sm90/output/whole_or_combined.cuh"
ENDLESS = "a tile without keys is nobody's"
MUTATIONS = {
    "a part is left out": (NUMBERS, Edit(OUTPUT, "n + i < count ?", "n + i + 1 < count ?")),
    "the first CTA to arrive combines": (
        "uninitialised-global",
        Edit(OUTPUT, "== pieces.count() - 1;", "== 0;"),
    ),
    "no fence before the arrival": (
        "cta-write-conflict",
        Edit(OUTPUT, "__threadfence();  // other CTAs see the part before this one arrives"),
    ),
    ENDLESS: (NUMBERS, Edit(ORDER, "blocks_ = max(blocks_, 1);")),
    "the mail is overwritten": (
        "race",
        Edit("sm90/shared_memory.cuh", "ptx::mbarrier_wait(mail.empty, parity ^ 1);"),
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.mutations if name == ENDLESS else ())
        for name in MUTATIONS
    ],
)
def test_mistakes_are_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MAX_STEPS", 50_000)  # five times what the right kernel takes
    caught_by, edit = MUTATIONS[name]
    call = Step((1, 0, 1, 0, 1), (600, 40, 0, 0, 2400), sinks=True).call()
    right = partial(assert_right, call)
    caught = kinds_caught(edit, tmp_path, planned(call), call, right)
    assert caught_by in caught or DEADLOCK in caught, caught


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("queries", [1, 40])
def test_kernels_do_not_spill(d: int, queries: int) -> None:
    plan = planned(Step((queries,), (1100,), d=d, heads=8 if queries == 1 else 4).call())
    unit = plan.recipe.steps[0].unit
    resources = compile_kernel(unit.source, arch=unit.target, name=unit.name).resources
    assert resources.spill_store_bytes == 0


@pytest.mark.gpu
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_random_steps_are_right(hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        call = random_step(seed).call("cuda", seed)
        out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
        try:
            assert_right(call, out, lse)
        except AssertionError as error:
            raise AssertionError(f"step {seed}: {random_step(seed)}") from error


@pytest.mark.gpu
def test_a_graph_replays_other_lengths() -> None:
    made = STEPS["a chunk"].call("cuda")
    arguments: dict[str, Any] = dict(made.keywords())

    def run() -> Tensor:
        out: Tensor = attention(*made[:3], **arguments)
        return out

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for used in ((900, 33, 0, 500), (41, 0, 7, 3), (600, 1, 9, 77)):
        arguments["seqused_k"].copy_(torch.tensor(used, dtype=torch.int32))
        out.fill_(torch.nan)
        graph.replay()
        torch.testing.assert_close(out, run(), rtol=0, atol=0)

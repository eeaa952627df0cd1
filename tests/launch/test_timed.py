# SPDX-License-Identifier: Apache-2.0
"""run_timed: what is between the events is the kernels, queued while the GPU is kept busy."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from flash_attention import forward, forward_timed
from flash_attention.call.call import Call
from flash_attention.launch.launcher import Launcher, Sized
from flash_attention.launch.plan import Plan
from flash_attention.launch.timed import SPIN_CYCLES, run_timed
from tests.launch.calls import CONFIG, HOPPER, dense, grouped
from tests.launch.stand_in import Gpus


class Watched:
    """In place of torch's events and of a plan's launcher: what was asked of them, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        watched = self
        number = sum(word.startswith("made") for word in self.said)
        name = ("start", "end")[number]
        self.said.append(f"made {name}")

        class Event:
            def record(self) -> None:
                watched.said.append(f"record {name}")

            def synchronize(self) -> None:
                watched.said.append(f"wait for {name}")

            def elapsed_time(self, other: object) -> float:
                return 1.5

        return Event()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    gpus, made = Gpus(), Watched()
    gpus.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", made.event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: made.said.append(f"spin {cycles}"))
    return made


def on_a_gpu(plan: Plan, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan as if it were for a GPU: its launches are noted."""
    monkeypatch.setattr(plan, "device_index", 0)
    monkeypatch.setattr(plan, "launcher", Launcher(plan.recipe, 0))
    monkeypatch.setattr(plan.preparation, "_launcher", plan.launcher)
    launch = plan.launcher.launch

    def note(arguments: Any, sized: Sized) -> None:
        watched.said.append("launch")
        launch(arguments)

    monkeypatch.setattr(plan.launcher, "launch", note)
    prepare = plan.prepare

    def prepared(call: Call, **how: Any) -> Any:
        watched.said.append("prepare")
        return prepare(call, **how)

    monkeypatch.setattr(plan, "prepare", prepared)
    return plan


IN_ORDER = [
    *("prepare", "made start", "made end", "launch", f"spin {SPIN_CYCLES}"),
    *("record start", "launch", "record end", "wait for end"),
]


def test_only_a_second_run_is_timed_and_all_is_queued_while_the_gpu_spins(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = grouped()
    call = Call(q, k, v, return_lse=True)
    plan = on_a_gpu(Plan(call, HOPPER), watched, monkeypatch)
    (out, lse), milliseconds = run_timed(plan, call)
    assert watched.said == IN_ORDER
    assert (out.shape, milliseconds) == (q.shape, 1.5)
    assert lse.shape == (1, 6, 100)


def test_a_benchmark_is_a_timed_call(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, o = dense()
    plan = on_a_gpu(Plan(Call(q, k, v, o), CONFIG), watched, monkeypatch)
    monkeypatch.setattr(sys.modules["flash_attention.forward"], "plan_for", lambda *_: plan)
    assert forward(CONFIG, q, k, v, o, benchmark=True) == (o, 1.5)
    assert watched.said == IN_ORDER
    watched.said.clear()
    assert forward_timed(CONFIG, q, k, v, o) == (o, 1.5)
    assert watched.said == IN_ORDER

# SPDX-License-Identifier: Apache-2.0
"""The process of FA3: what is told if there is none, and which peers are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flash_attention.kernel_configs import DType
from flash_attention.reference.judge import Check
from flash_attention_workbench.bench.beside_fa3 import (
    NOTHING,
    Asked,
    BesideFa3,
    MeasuredPoint,
    right_peers,
)
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_run import measure_beside_fa3
from flash_attention_workbench.bench.statistics import Timing
from flash_attention_workbench.child import ChildLostError

ASKED = Asked(
    Point(64, False, 96, 1, 2), DType.BF16, Measured.FORWARD, repeats=5, device=torch.device("cpu")
)


def test_a_process_that_cannot_be_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLASH_ATTENTION_FA3", raising=False)
    assert BesideFa3().measure(measure_beside_fa3, ASKED) == replace(
        NOTHING,
        refused={"fa3": "no library of it is named; set FLASH_ATTENTION_FA3 to its path"},
    )
    process = BesideFa3()
    library = tmp_path / "other.so"
    library.touch()

    def lost(*_: object) -> None:
        raise ChildLostError("faulted", "the process ended (-11)", None)

    monkeypatch.setattr(process._child, "call", lost)
    refused = process.measure(measure_beside_fa3, replace(ASKED, fa3=library)).refused
    assert refused == {"fa3": "the process ended (-11)"}


def check(error: float) -> Check:
    return Check(error, reference_error=1.0, allowed=2.0, worst_index=(0, 0, 0, 0))


def test_a_peer_counts_if_all_of_its_results_are_right() -> None:
    timing = Timing(2.0, 1.9, 2.1, 5)
    here = MeasuredPoint(
        "ours",
        dict.fromkeys(("ours", "cudnn", "fa2"), timing),
        {
            "ours": {"dq": check(1.0)},
            "cudnn": {"dq": check(1.0), "dk": check(1.0)},
            "fa2": {"dq": check(1.0), "dk": check(7.0)},
        },
        {"flex": "not here"},
    )
    there = MeasuredPoint("ours", {"fa3": timing}, {"fa3": {"dq": check(1.0)}}, {})
    times, refused = right_peers(("cudnn", "fa2", "fa3"), (there, here))
    assert times == {"cudnn": 2.0, "fa3": 2.0}
    assert set(refused) == {"flex", "fa2"}
    assert refused["fa2"] == f"wrong: {check(7.0)}"
    assert here.right_ms("fa2") is None
    assert here.right_ms("nobody") is None

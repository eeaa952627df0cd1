# SPDX-License-Identifier: Apache-2.0
"""What options cost is measured beside results that are right, and shown as multiples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.options import DROPOUT, FA2, LARGEST, PLAIN, Point
from benchmarks.render import documents
from benchmarks.render.blocks import begin, end
from benchmarks.render.options import OPTIONS
from flash_attention.files import write_record

ROUNDED = 1e-2  # relative RMS, of results in bfloat16


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
def test_calls_are_held_to_the_formula_of_the_last_head(causal: bool, dropout: bool) -> None:
    point = Point(32, 2, 48, causal, torch.device("cpu"), width=96)
    options = point.dropout if dropout else {}
    out, gradients = point.expected(dropout)

    def apart(one: Tensor, right: Tensor) -> float:
        return float((point.last(one) - right).norm() / right.norm())

    assert apart(point.forward(**options)(), out) < ROUNDED
    for one, right in zip(point.backward(**options)(), gradients, strict=True):
        assert apart(one, right) < ROUNDED


def test_the_largest_score_is_that_of_all_sequences() -> None:
    point = Point(32, 3, 40, True, torch.device("cpu"), width=64)
    _, largest = point.forward(return_max=True)()
    assert float(largest[-1]) == pytest.approx(point.largest(), rel=1e-3)


def test_costs_are_multiples_of_the_call_without(tmp_path: Path) -> None:
    forward = {PLAIN: 2.0, DROPOUT: 3.0, LARGEST: 2.1, FA2: 6.0}
    row = {
        **{"d": 64, "causal": True, "batch": 4, "seq": 4096, "heads": 32},
        "options_ms": {"forward": forward, "backward": {PLAIN: 4.0, DROPOUT: 5.0, FA2: 8.0}},
    }
    record: dict[str, Any] = {
        **{"device": "NVIDIA H200", "driver": "580", "nvrtc": "13.0", "torch": "2.11"},
        **{"date": "2026-11-19", "commit": "0123456789ab", "command": "measured", "rows": [row]},
    }
    document, results = tmp_path / "attention.md", tmp_path / "options.json"
    document.write_text(f"{begin(OPTIONS)}\n{end(OPTIONS)}\n")
    write_record(results, record)
    documents.main([str(document), str(results)])
    text = document.read_text()
    assert "| 64, causal | 4 x 4,096 | 1.50 | 1.25 | 2.00 | 1.60 | 1.05 |" in text
    assert "BF16, 2,048 columns of heads" in text

# SPDX-License-Identifier: Apache-2.0
"""The table of GPUs and features says what strict mode computes and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.render import gpus
from benchmarks.render.blocks import marked_block
from flash_attention.arch import ARCHES

ROOT = Path(__file__).resolve().parents[3]


def test_every_architecture_has_a_column() -> None:
    assert [arch for archs in gpus.COLUMNS.values() for arch in archs] == list(ARCHES)


def test_the_readme_has_the_current_table() -> None:
    stored = marked_block((ROOT / gpus.DOCUMENT).read_text(), gpus.GPUS)
    assert stored == gpus.gpus_block(), "run `python -m benchmarks.render`"
    hopper_only = [line for line in stored.splitlines() if line.endswith("| no | yes | no | yes |")]
    assert [line.split()[1] for line in hopper_only] == [
        *("gradients", "derivatives", "FP8,", "head", "latent")
    ]


def test_a_call_that_is_wrong_everywhere_is_no_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: tuple[Callable[[], None], ...] = (lambda: gpus._trained(d=520),)
    monkeypatch.setattr(gpus, "ROWS", {"wider": calls})
    assert "| wider | no | no | no | yes |" in gpus.gpus_block()

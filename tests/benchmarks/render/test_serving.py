# SPDX-License-Identifier: Apache-2.0
"""The table of the serving grid is rendered from a stored file, with its plot."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.render import documents
from benchmarks.render.blocks import begin, end
from benchmarks.render.serving import SERVING_PLOT
from flash_attention.files import write_record
from flash_attention_workbench.bench.serving import SERVING
from flash_attention_workbench.bench.serving_run import ServingRow

EMPTY = f"# before\n{begin(SERVING)}\n{end(SERVING)}\nafter\n"


def row(label: str, us: dict[str, float], refused: dict[str, str] | None = None) -> ServingRow:
    layer = "32:8 h, d 128, pages of 16"
    gbps = 1234.0 if "packed" in us else None
    return ServingRow(label, layer, 2, 2, 300, "hopper", us, {}, {}, gbps, refused or {})


def stored(path: Path, *rows: ServingRow) -> Path:
    record: dict[str, Any] = {
        **{"device": "NVIDIA H200", "driver": "580", "nvrtc": "13.0", "torch": "2.11"},
        **{"date": "2026-11-17", "commit": "0123456789ab", "command": "bench", "grid": SERVING},
        **{"repeats": 25, "l2": "cold", "rows": [asdict(one) for one in rows]},
        "host_us": {"packed": {"new": 58.2, "known": 17.9}, "fa3": {"new": 82.0, "known": 44.0}},
    }
    write_record(path, record)
    return path


def test_every_number_of_the_table(tmp_path: Path) -> None:
    document = tmp_path / "serving.md"
    document.write_text(EMPTY)
    rows = (
        row("decode 2 x 150", {"packed": 10.0, "batched": 9.5, "invariant": 11.0, "fa3": 20.0}),
        row("chunk", {"packed": 30.04, "fa3": 15.02}),
        row("broken", {"fa3": 15.0}, {"packed": "wrong: max error"}),
    )
    documents.main([str(document), str(stored(tmp_path / "r.json", *rows))])
    text = document.read_text()
    layer = "32:8 h, d 128, pages of 16"
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        f"| decode 2 x 150 | {layer} | 10.0 | 9.5 | 11.0 | 20.0 | **2.00** | 1.23 |",
        f"| chunk | {layer} | 30.0 |  |  | 15.0 | **0.50** | 1.23 |",
        f"| broken | {layer} | wrong |  |  | 15.0 |  |  |",
    ]
    assert "Geometric mean of the speeds: **1.000**, least: **0.500**." in text
    assert "ours 58 with new shapes and 18 with known ones; vLLM's FA3 82" in text
    for fact in ("NVIDIA H200", "driver 580", "NVRTC 13.0", "commit 0123456789ab", "L2 cold"):
        assert fact in text
    assert text.startswith("# before\n")
    assert text.endswith("\nafter\n")
    assert f"]({SERVING_PLOT})" in text
    assert (tmp_path / SERVING_PLOT).read_bytes().startswith(b"\x89PNG")


def test_without_the_peer_there_is_no_mean(tmp_path: Path) -> None:
    document = tmp_path / "serving.md"
    document.write_text(EMPTY)
    documents.main([str(document), str(stored(tmp_path / "r.json", row("a", {"packed": 1.0})))])
    text = document.read_text()
    assert "FA3 was not measured." in text
    assert "| a | 32:8 h, d 128, pages of 16 | 1.0 |  |  |  |  | 1.23 |" in text
    assert "png" not in text
    assert not (tmp_path / SERVING_PLOT).exists()

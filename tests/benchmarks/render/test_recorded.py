# SPDX-License-Identifier: Apache-2.0
"""The recorded steps of all engines share one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.render import documents
from benchmarks.render.blocks import begin, end
from benchmarks.render.recorded import RECORDED
from flash_attention.files import write_record

LAYER = "32:8 heads, d 128"


def row(queries: int, ours: float, fa3: float, *, right: bool = True) -> dict[str, Any]:
    us = {"ours": ours, "ours, one launch": 1.0, "fa3": fa3}
    about = {"layer": LAYER, "step": 0, "requests": 3, "queries": queries, "keys": 300}
    return about | {"us": us, "difference": 1e-3, "right": right}


def store(path: Path, engine: str, page: int, commit: str, *rows: dict[str, Any]) -> None:
    facts = {"device": "NVIDIA H200", "driver": "580", "nvrtc": "13.0", "torch": "2.11"}
    facts |= {"date": "2026-11-17", "commit": commit, "engine": engine}
    write_record(path, facts | {"page": page, "repeats": 5, "rows": rows})


def test_every_number_of_the_table(tmp_path: Path) -> None:
    document = tmp_path / "serving.md"
    document.write_text(f"# before\n{begin(RECORDED)}\n{end(RECORDED)}\nafter\n")
    decoding, wrong = row(3, 10.0, 20.0), row(3, 20.0, 10.0, right=False)
    store(tmp_path / "a.json", "one 1.0", 16, "c0ffee", decoding, wrong, row(50, 10.0, 12.5))
    store(tmp_path / "b.json", "two 2.0", 1, "c0ffee", row(3, 10.0, 9.8))
    store(tmp_path / "c.json", "two 2.0", 64, "facade", row(99, 10.0, 9.6))
    (tmp_path / "d.json").write_text('{"rows": []}')
    for name in "ac":  # whichever is named, the others of the folder are shown too
        documents.main([str(document), str(tmp_path / f"{name}.json")])
        text = document.read_text()
        assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
            f"| one 1.0 | 16 | {LAYER} | every request decodes | 2 | 1 | **1.00** | 0.50 | 1 |",
            f"| one 1.0 | 16 | {LAYER} | with chunks of prompts | 1 | 1 | **1.25** | 1.25 | 0 |",
            f"| two 2.0 | 1 | {LAYER} | every request decodes | 1 | 1 | **0.98** | 0.98 | 0 |",
            f"| two 2.0 | 64 | {LAYER} | with chunks of prompts | 1 | 1 | **0.96** | 0.96 | 1 |",
        ]
        assert "Outputs that are right: 4 of 5. Calls below 0.97 of FA3's speed: 2 of 5." in text
        runs = "commit {}, medians of 5 interleaved runs with L2 cold: {}."
        first = runs.format("c0ffee", "one 1.0 with pages of 16, two 2.0 with pages of 1")
        assert first in text
        assert runs.format("facade", "two 2.0 with pages of 64") in text
        assert "by at most 0.6 % of its norm, or by 4 % with 8 bits. One of 10 is" in text
        assert text.startswith("# before\n")
        assert text.endswith("\nafter\n")

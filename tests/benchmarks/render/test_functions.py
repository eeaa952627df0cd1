# SPDX-License-Identifier: Apache-2.0
"""The tables of the grid of functions are rendered from a stored file."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.render import documents
from benchmarks.render.blocks import begin, end
from benchmarks.render.functions import COSTS
from flash_attention.files import write_record
from flash_attention_workbench.bench.function_run import FunctionRow
from flash_attention_workbench.bench.functions import FUNCTIONS

BLOCKS = "".join(f"{begin(name)}\n{end(name)}\n" for name in (FUNCTIONS, COSTS))
EMPTY = f"# before\n{BLOCKS}after\n"
CAUSAL = FunctionRow(
    *("causal", 64, 1024, 16, 32, "FORWARD", "hopper"),
    *({"ours": 1.0, "built-in": 0.8, "flex": 2.0}, 412.4, {}, {}),
)


def rendered(folder: Path, *rows: FunctionRow, **costs: Any) -> str:
    record: dict[str, Any] = {
        **{"device": "NVIDIA H200", "driver": "580", "nvrtc": "13.0", "torch": "2.11"},
        **{"date": "2026-11-18", "commit": "0123456789ab", "command": "bench", "grid": FUNCTIONS},
        **{"repeats": 11, "l2": "cold", "dtype": "BF16", "rows": [asdict(one) for one in rows]},
        **{"plans_ms": {}, "first_calls": {}, **costs},
    }
    document, results = folder / "masks.md", folder / "functions.json"
    document.write_text(EMPTY)
    write_record(results, record)
    documents.main([str(document), str(results)])
    return document.read_text()


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|") and "---" not in line]


def test_every_number_of_the_tables(tmp_path: Path) -> None:
    lonely = {"ours": 1.0}
    rows = (
        replace(CAUSAL, function="prefix_lm", ms=lonely, refused={"flex": "no memory"}),
        CAUSAL,
        replace(CAUSAL, seq=4096, tflops=555.6, ms={**CAUSAL.ms, "flex": 3.0}),
        replace(CAUSAL, measured="BACKWARD", ms={"flex": 2.0}, tflops=None),
    )
    text = rendered(tmp_path, *rows)
    built_in, flex = "time, built-in = 1", "speed, flex = 1"
    assert lines_of(text) == [
        f"| forward, TFLOP/s | d | 1,024 rows | 4,096 rows | {built_in} | {flex} |",
        "| causal | 64 | 412 | 556 | 1.25 1.25 | 2.00 3.00 |",
        "| prefix LM | 64 | 412 |  |  |  |",
        f"| backward, TFLOP/s | d | 1,024 rows | {built_in} | {flex} |",
        "| causal | 64 | wrong |  |  |",
    ]
    assert (
        "Geometric means, forward: 1.250 of the built-in kernel's time (at most 1.250),"
        " 2.45 times as fast as flex (at least 2.00)."
    ) in text
    assert "No flex_attention for prefix LM at d 64 with 1,024 rows: no memory." in text
    for fact in ("NVIDIA H200", "driver 580", "commit 0123456789ab", "L2 cold", "medians of 11"):
        assert fact in text
    assert text.startswith("# before\n")
    assert text.endswith("\nafter\n")


def test_a_gap_in_the_ratios_is_a_dash(tmp_path: Path) -> None:
    ms = {"ours": 1.0, "flex": 2.0}
    text = rendered(tmp_path, replace(CAUSAL, ms=ms), replace(CAUSAL, seq=4096))
    assert lines_of(text)[1] == "| causal | 64 | 412 | 412 | - 1.25 | 2.00 2.00 |"


def test_planning_and_first_calls(tmp_path: Path) -> None:
    calls = {"import": 31.4, "causal, forward": 1999.6}
    text = rendered(
        tmp_path,
        replace(CAUSAL, note="without the gradient"),
        plans_ms={
            "causal": {"16384": 0.00812, "131072": 0.0131},
            "causal, flex": {"16384": 8.1},
        },
        first_calls={
            "ours": {"new function": calls, "from disk in a new process": {"import": 30.0}},
            "flex": {"new function": {"causal, forward": 5000.0}},
        },
    )
    assert lines_of(text)[2:] == [
        "| planning of blocks, ms | 16,384 tokens | 131,072 tokens |",
        "| causal | 0.0081 | 0.0131 |",
        "| causal, flex | 8.1000 |  |",
        "| first call, ms | ours, new function | ours, from disk in a new process |"
        " flex_attention, new function | flex_attention, from disk in a new process |",
        "| import | 31 | 30 |  |  |",
        "| causal, forward | 2,000 |  | 5,000 |  |",
    ]
    assert "causal: without the gradient." in text


def test_a_record_of_costs_alone_has_a_block_of_its_own(tmp_path: Path) -> None:
    calls = {"ours": {"new function": {"causal, forward": 1999.6}}}
    text = rendered(tmp_path, first_calls=calls)
    assert lines_of(text)[1:] == ["| causal, forward | 2,000 |  |"]
    assert "commit 0123456789ab" in text
    assert "TFLOP/s" not in text

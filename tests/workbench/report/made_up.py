# SPDX-License-Identifier: Apache-2.0
"""A folder of made-up results of every kind, and the two rungs they are about."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flash_attention_workbench.bench.grid import Measured
from flash_attention_workbench.bench.grid_record import grid_rows
from flash_attention_workbench.bench.results import Results, save
from flash_attention_workbench.bench.stored import Stored, read_folder
from flash_attention_workbench.report import LaunchText, RungText
from tests.workbench.bench.made_up import made_up_results
from tests.workbench.bench.made_up_grid import grid_row, made_up_grid

RUNGS = (
    RungText(1, "base", "the <first> & plainest", "", "", "sm_80"),
    RungText(
        2,
        "swizzle",
        "no conflicts",
        "swizzled: False -> True",
        "--- rung 1\n+++ rung 2\n@@ -1,2 +1,2 @@\n same\n-old<int>();\n+new<int>();\n",
        "sm_90",
    ),
)
BACKWARD_RUNGS = (
    RungText(
        *(1, "base", "all five products", "", "", "sm_80"),
        launches=(LaunchText("prepare", 1, 64, 256, 0), LaunchText("main", 4, 2048, 384, 115712)),
        launched_for="a <shape>",
    ),
    RungText(2, "two stages", "loads run ahead", "stages: 1 -> 2", "--- 1\n+++ 2\n+a\n", "sm_90"),
)
OTHER = {
    "device": "Some GPU",
    "cost": {"forward": 1.5, "none": None},
    "rows": [{"case": "<add>", "ok": True, "ncu": {"sectors": 20480.0}, "lengths": [1, 2]}],
}
PEAKS = {"device": "Some GPU", "peak": {"bf16_matmul_tflops": 1000.0, "copy_tb_s": 4.0}}


def selected_grid() -> dict[str, Any]:
    """The made-up grid with only what is selected at every point."""
    grid = made_up_grid()
    return {**grid, "rows": [row for row in grid["rows"] if row["selected"]]}


def decode_grid() -> dict[str, Any]:
    """One query for 4,096 keys, at 3,000 GB/s and twice as fast as FA3; and a kernel that is wrong.

    K and V have 2 x 4096 x 2 x 64 x 2 bytes.
    """
    ms = 4096 * 2 * 64 * 2 * 2 / 3000e6
    row = grid_row("c", (64, False, 4096), ms, {"fa3": 2 * ms, "fa2": 3 * ms})
    flop = 4 * 8 * 64 * 4096
    one = replace(row, batch=1, heads=8, heads_k=2, seq_q=1, tflops=flop / ms / 1e9, gbps=3000.0)
    rows = [replace(one, copy_gbps=4000.0), replace(one, batch=2, ok=False)]
    return {**made_up_grid(), "grid": "decode", "rows": [asdict(each) for each in rows]}


def gradient_grid(measured: Measured = Measured.BACKWARD) -> dict[str, Any]:
    """Gradients of the selected grid: 2.5 times the FLOP in twice the time. Our deterministic mode
    takes twice as long as the other, and FA3 has one where it runs, four times as long as ours.
    FA3 ran in a process where ours took half as long."""
    rows = []
    for row in grid_rows(selected_grid()):
        ms = 2 * row.ms
        peers = {name: 2 * peer for name, peer in row.peers.items()}
        beside = {}
        if "fa3" in peers:
            peers["fa3_deterministic"] = 8 * ms
            beside = {"fa3": ms / 2, "fa3_deterministic": ms}
        rows.append(
            replace(
                row,
                ms=ms,
                tflops=row.tflops * measured.value / 2,
                peers=peers,
                beside=beside,
                measured=measured.name,
                deterministic_ms=2 * ms,
            )
        )
    return {**made_up_grid(), "grid": "backward", "rows": [asdict(row) for row in rows]}


def emulated() -> dict[str, Any]:
    def row(number: int, name: str, ways: float, opcodes: dict[str, int]) -> dict[str, Any]:
        return {
            "rung": number,
            "name": name,
            "arch": "sm_90",
            "registers": 100 * number,
            "spilled_bytes": 0,
            "shared_bytes": 49152,
            "ctas_per_sm": 2,
            "limited_by": "registers",
            "same_code": False,
            "language": "SASS",
            "opcodes": opcodes,
            "mix": {},
            "emulated": {
                "error": 1e-4,
                "allowed": 1e-3,
                "bank conflicts": 4096 * (2 - number),
                "wavefronts / needed": ways,
                "sectors / request": 16.0,
                "instructions / key block": 2000.0 * number,
            },
        }

    rows = [row(1, "base", 8.0, {"FADD": 5, "LDS": 9}), row(2, "swizzle", 1.0, {"FADD": 5})]
    return {"date": "2026-01-31", "dtype": "FP16", "shape": [1, 256, 2, 128], "rows": rows}


def backward_emulated() -> dict[str, Any]:
    rows = [dict(row) for row in emulated()["rows"]]
    for row, rung in zip(rows, BACKWARD_RUNGS, strict=True):
        row |= {"name": rung.name, "registers": 168}
    return {**emulated(), "pass_": "backward", "rows": rows}


def backward_results() -> Results:
    """The made-up ladder with the names of the backward rungs."""
    names = {rung.number: rung.name for rung in BACKWARD_RUNGS}
    forward = made_up_results()
    rows = [
        replace(row, contender=names[row.number]) if row.number else row for row in forward.rows
    ]
    return replace(forward, rows=tuple(rows), pass_="backward")


def timings() -> list[dict[str, Any]]:
    """A tuner's store: one point, three configs, one of which failed, and one measured twice."""
    point = {"d_head": 64, "causal": True, "seq_len": 512, "batch": 4, "heads": 2}
    return [
        {"point": point, "config": "first", "ms": 9.0},
        {"point": point, "config": "second <b>", "ms": 4.0},
        {"point": point, "config": "hangs", "ms": None},
        {"point": point, "config": "first", "ms": 5.0},
    ]


def write_folder(folder: Path) -> Path:
    """Every kind of results under names that say nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    save(made_up_results(), folder / "a.json")
    for name, record in (("b", selected_grid()), ("c", emulated()), ("d", PEAKS)):
        (folder / f"{name}.json").write_text(json.dumps(record))
    lines = "".join(json.dumps(line) + "\n" for line in timings())
    (folder / "e.jsonl").write_text(lines)
    (folder / "f.json").write_text(json.dumps(decode_grid()))
    (folder / "g.json").write_text(json.dumps(OTHER))
    (folder / "h.txt").write_text("$ pytest\n7 passed <in> 1 s\n")
    (folder / "i.json").write_text(json.dumps(gradient_grid()))
    save(backward_results(), folder / "j.json")
    (folder / "k.json").write_text(json.dumps(backward_emulated()))
    return folder


def stored_results(folder: Path) -> tuple[Stored, ...]:
    return read_folder(write_folder(folder))

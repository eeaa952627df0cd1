# SPDX-License-Identifier: Apache-2.0
"""A measured grid comes back from its file as it was; old files are read too."""

from __future__ import annotations

import csv
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.grid_record import Grid, load_json, save_csv, save_json
from tests.workbench.bench.made_up_grid import made_up_grid, made_up_rows

RESULTS = Path(__file__).resolve().parents[3] / "results"


def test_a_round_trip(tmp_path: Path) -> None:
    rows = [replace(made_up_rows()[0], lengths=(5, 7), gbps=3.5), *made_up_rows()[1:]]
    facts = {f.name: made_up_grid()[f.name] for f in fields(Grid) if f.name != "rows"}
    save_json(tmp_path / "deep" / "r.json", facts, rows, [{"name": "fa3", "why": "no library"}])
    record = load_json(tmp_path / "deep" / "r.json")
    assert list(record.rows) == rows
    assert record.facts == {**facts, "refused": [{"name": "fa3", "why": "no library"}]}


def test_stored_results_are_read() -> None:
    record = load_json(RESULTS / "h200_hopper_grid_bf16.json")
    assert len(record.rows) == 36
    assert record.facts["grid"] == "fa3"


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for text in ("nothing", "[]", json.dumps({"rows": [{"ms": 1}]})):
        path.write_text(text)
        with pytest.raises(UnsupportedError, match="is not a measured grid"):
            load_json(path)
    path.write_text(json.dumps({**made_up_grid(), "rows": []}))
    with pytest.raises(UnsupportedError, match="nothing was measured"):
        load_json(path)


def test_csv_has_a_line_a_row_and_a_column_a_peer(tmp_path: Path) -> None:
    save_csv(tmp_path / "r.csv", made_up_rows())
    lines = list(csv.DictReader((tmp_path / "r.csv").open()))
    assert len(lines) == 4
    for line, row in zip(lines, made_up_rows(), strict=True):
        assert float(line["ms"]) == row.ms
        assert line["config"] == row.config
        assert line["fa2_ms"] == (str(row.peers["fa2"]) if "fa2" in row.peers else "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rows": {}}, "it has no list of rows"),
        ({"date": ...}, "date is missing; there are device, date, commit, command, grid"),
        ({"device": []}, r"device is \[\]; a str is needed"),
        ({"rows": [3]}, "row 1: 3 is no JSON object"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    record = {k: v for k, v in {**made_up_grid(), **change}.items() if v is not ...}
    (tmp_path / "r.json").write_text(json.dumps(record))
    with pytest.raises(UnsupportedError, match=rf"r\.json is not a measured grid.*: {why}"):
        load_json(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"config": {}}, r"row 2: config is \{\}; a str is needed"),
        ({"gbps": float("inf")}, "row 2: gbps is inf; it must be positive"),
        ({"deterministic_ms": 0.0}, r"row 2: deterministic_ms is 0.0; it must be positive"),
        ({"measured": "SIDEWAYS"}, "row 2: measured is 'SIDEWAYS'; there are FORWARD, BACKWARD"),
        ({"seq_q": 1 << 30}, "row 2: seq_q 1073741824 is more than seq"),
        ({"ms": 0.0}, r"row 2: ms is 0\.0; it must be positive"),
        ({"peers": {"fa2": -1.0}}, r"row 2: peers.fa2 is -1\.0; it must be positive"),
        ({"lengths": [1.5]}, r"row 2: lengths\[0\] is 1\.5; an int is needed"),
    ],
)
def test_a_field_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    record = made_up_grid()
    record["rows"][1] |= change
    (tmp_path / "r.json").write_text(json.dumps(record))
    with pytest.raises(UnsupportedError, match=why):
        load_json(tmp_path / "r.json")

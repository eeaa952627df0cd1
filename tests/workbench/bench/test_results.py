# SPDX-License-Identifier: Apache-2.0
"""Results files survive the round trip, and anything else is refused with its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.results import load, save
from tests.workbench.bench.made_up import made_up_results


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "r.json"
    save(made_up_results(), path)
    assert load(path) == made_up_results()


def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    save(made_up_results(), path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "schema": 99}))
    with pytest.raises(UnsupportedError, match="schema 99, this version reads 1"):
        load(path)


@pytest.mark.parametrize("text", ["not json", "[]", "{}", '{"schema": 1, "rows": [{}]}'])
def test_a_file_that_is_no_results_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UnsupportedError, match=r"r\.json is not a results file"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="nowhere"):
        load(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"contender": []}, r"row 1: contender is \[\]; a str is needed"),
        ({"tflops": 0}, "row 1: tflops is 0; it must be positive"),
        ({"batch": "many"}, "row 1: batch is 'many'; an int is needed"),
    ],
)
def test_a_field_that_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    path = tmp_path / "r.json"
    save(made_up_results(), path)
    data = json.loads(path.read_text())
    data["rows"][0] |= change
    path.write_text(json.dumps(data))
    with pytest.raises(UnsupportedError, match=rf"r\.json is not a results file.*: {why}"):
        load(path)

# SPDX-License-Identifier: Apache-2.0
"""The file of a table: read back as written, and refused with what is wrong in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flash_attention.call.backward_call import Wanted
from flash_attention.choose.table import Table
from flash_attention.choose.table_file import SCHEMA, load_table, save_table
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.tune.candidates import heuristic
from tests.workbench.tune.made_up import SM90, dense, dense_backward, dense_tangent, entry

PROBLEMS = [dense(512), dense(1024, causal=True)]
TABLE = Table("NVIDIA H200").with_entries(entry(p, heuristic(p, SM90)) for p in PROBLEMS)


def written(path: Path, change: dict[str, Any], within: str = "", table: Table = TABLE) -> Path:
    """The table with something changed: in the file, in its first entry, in that's problem."""
    save_table(table, path)
    data = json.loads(path.read_text())
    places = {"": data, "entry": data["entries"][0], "problem": data["entries"][0]["problem"]}
    for name, value in change.items():
        places[within][name] = value
        if value is ...:
            del places[within][name]
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("table", [TABLE, Table("A")], ids=["full", "empty"])
def test_a_table_is_read_back(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.json"
    save_table(table, path)
    assert load_table(path) == table
    assert [p.name for p in path.parent.iterdir()] == ["table.json"]


def test_people_read_one_line_an_entry(tmp_path: Path) -> None:
    save_table(TABLE, tmp_path / "table.json")
    lines = (tmp_path / "table.json").read_text().splitlines()
    assert sum('"seq_q"' in line for line in lines) == len(TABLE.entries)
    assert f' "schema": {SCHEMA},' in lines


@pytest.mark.parametrize(
    ("within", "change", "said"),
    [
        ("", {"schema": 2}, "has table schema 2, this version reads 1; tune again"),
        ("", {"device": ...}, "does not say which device"),
        ("", {"entries": {}}, "no list of entries"),
        ("entry", {"ms": "fast"}, "entry 1 of .*: ms is 'fast'; a float is needed"),
        ("entry", {"ms": -1.0}, "ms is -1.0; it must be positive"),
        ("entry", {"when": ...}, "when is missing; there are problem, config"),
        ("entry", {"speed": 1}, "unknown field 'speed'"),
        ("entry", {"problem": 3}, "3 is no JSON object"),
        ("problem", {"dtype": "FP8"}, "dtype 'FP8' is not supported"),
        ("problem", {"seq_q": 0}, "seq_q is 0; it is at least 1"),
        ("problem", {"seq_q": True}, "seq_q is True; an int is needed"),
        ("problem", {"heads_k": 3}, "heads is 16, no multiple of heads_k"),
        ("problem", {"d_v": 256}, "does not compute"),
        ("problem", {"dtype": []}, r"dtype is \[\]; a str is needed"),
        ("entry", {"when": {}}, r"when is \{\}; a str is needed"),
        ("", {"schema": []}, r"has table schema \[\], this version reads 1"),
    ],
)
def test_what_is_wrong_is_said(
    within: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        load_table(written(tmp_path / "table.json", change, within))


BACKWARD = [
    dense_backward(512),
    dense_backward(512, wanted=Wanted(dq=False)),
    dense_backward(1024, causal=True, deterministic=True),
]
TANGENT = dense_tangent(512)
EVERY = TABLE.with_entries(entry(p, heuristic(p, SM90)) for p in (TANGENT, *BACKWARD))


def test_entries_of_all_passes_are_in_one_table(tmp_path: Path) -> None:
    save_table(EVERY, tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == EVERY
    assert [e.problem for e in EVERY.entries] == [*sorted(PROBLEMS), *sorted(BACKWARD), TANGENT]
    data = json.loads((tmp_path / "table.json").read_text())
    passes = [None] * 2 + ["backward"] * 3 + ["tangent"]
    assert [e["problem"].get("pass") for e in data["entries"]] == passes
    wanted = [e["problem"]["wanted"] for e in data["entries"][2:5]]
    assert sorted(wanted) == [["dk", "dv"], ["dq", "dk", "dv"], ["dq", "dk", "dv"]]


@pytest.mark.parametrize(
    ("within", "change", "said"),
    [
        ("problem", {"pass": "sideways"}, "pass is 'sideways'; it is 'backward' or 'tangent', or"),
        ("problem", {"pass": []}, r"pass is \[\]; it is 'backward' or 'tangent', or"),
        ("problem", {"pass": ...}, "unknown field 'deterministic'"),
        (
            "problem",
            {"wanted": []},
            r"wanted is \[\]; a list of gradients is needed, of dq",
        ),
        ("problem", {"wanted": ["dsinks"]}, r"wanted is \['dsinks'\]; a list of gradients"),
        ("problem", {"wanted": ...}, "wanted is None; a list of gradients"),
        ("problem", {"deterministic": 1}, "deterministic is 1; a bool is needed"),
        ("problem", {"d_v": 256}, "does not compute"),
        (
            "entry",
            {"config": heuristic(dense(512), SM90).short_form()},
            "is a config of the forward pass, and the problem is one of the backward pass",
        ),
    ],
)
def test_what_is_wrong_with_gradients_is_said(
    within: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    table = Table("NVIDIA H200").with_entries(
        entry(p, heuristic(p, SM90)) for p in (dense_backward(512),)
    )
    with pytest.raises(UnsupportedError, match=said):
        load_table(written(tmp_path / "table.json", change, within, table))


def test_a_config_of_the_backward_pass_is_none_of_the_forward(tmp_path: Path) -> None:
    change = {"config": heuristic(dense_backward(512), SM90).short_form()}
    with pytest.raises(UnsupportedError, match="is a config of the backward pass, and the problem"):
        load_table(written(tmp_path / "table.json", change, "entry"))


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for name in ("absent", "broken", "list"):
        with pytest.raises(UnsupportedError, match=f"{name}.json is not a table"):
            load_table(tmp_path / f"{name}.json")


def test_a_config_that_is_gone_is_a_note(tmp_path: Path) -> None:
    gone = {"config": "hopper(BF16, 128, 2, 128, 2): tma+telepathy"}
    table = load_table(written(tmp_path / "table.json", gone, "entry"))
    assert table.entries == TABLE.entries[1:]
    (note,) = table.notes
    assert "entry 1 of" in note
    assert "unknown word 'telepathy'" in note


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    save_table(TABLE, f"{tmp_path}/table.json")
    assert load_table(f"{tmp_path}/table.json") == TABLE


def test_numbers_without_end_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "table.json", {"ms": 0.5}, "entry")
    path.write_text(path.read_text().replace("0.5", "9" * 5000))
    with pytest.raises(UnsupportedError, match=r"table\.json is not a table: its number 9{90,}"):
        load_table(path)

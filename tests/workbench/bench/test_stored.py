# SPDX-License-Identifier: Apache-2.0
"""Results files are known by what they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench import stored
from flash_attention_workbench.bench.results import load, save
from tests.workbench.bench.made_up import made_up_results
from tests.workbench.report.made_up import write_folder

RESULTS = Path(__file__).resolve().parents[3] / "results"


def test_every_kind_by_its_content(tmp_path: Path) -> None:
    kinds = {one.path.name: one.kind for one in stored.read_folder(write_folder(tmp_path))}
    assert kinds == {
        "a.json": stored.LADDER,
        "b.json": stored.GRID,
        "c.json": stored.EMULATED,
        "d.json": stored.PEAKS,
        "e.jsonl": stored.TIMINGS,
        "f.json": stored.GRID,
        "g.json": stored.OTHER,
        "h.txt": stored.OTHER,
        "i.json": stored.GRADIENTS,
        "j.json": stored.BACKWARD_LADDER,
        "k.json": stored.BACKWARD_EMULATED,
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("h200_ladder", stored.LADDER),
        ("h200_hopper_grid_bf16", stored.GRID),
        ("h200_hopper_ablations", stored.CANDIDATES),
        ("h200_ladder_profile", stored.PROFILE),
        ("h200_hopper_profile", stored.OTHER),
        ("h200_host_cost", stored.OTHER),
        ("emulator_ladder", stored.EMULATED),
        ("emulator_backward_ladder", stored.BACKWARD_EMULATED),
    ],
)
def test_the_stored_files(name: str, kind: str) -> None:
    assert stored.read_file(RESULTS / f"{name}.json").kind == kind


def test_what_is_no_record_is_of_no_kind() -> None:
    other_grid = {"grid": "x", "rows": [{"d": 64}]}
    records: tuple[object, ...] = ([], 3, {}, {"rows": []}, {"rows": [1]}, other_grid)
    for record in records:
        assert stored.kind_of(record) == stored.OTHER


def test_the_newest_goes_first(tmp_path: Path) -> None:
    dates = {"a": "2026-01-31", "b": "2026-03-01", "c": "2026-03-01"}
    files = [
        stored.Stored(tmp_path / name, stored.PROFILE, {"date": date})
        for name, date in dates.items()
    ]
    found = stored.newest(files, stored.PROFILE)
    assert found is not None
    assert found.path.name == "b"
    assert stored.newest(files, stored.LADDER) is None


def test_folders_and_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="is no folder"):
        stored.read_folder(tmp_path / "absent")
    with pytest.raises(UnsupportedError, match="holds no results"):
        stored.read_folder(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UnsupportedError, match=r"bad\.json is not a results file"):
        stored.read_folder(tmp_path)


def test_the_ladders_of_both_passes_are_told_apart(tmp_path: Path) -> None:
    for name, measured in (
        ("f", made_up_results()),
        ("b", replace(made_up_results(), pass_="backward", date="2026-02-01")),
    ):
        save(measured, tmp_path / f"{name}.json")
    files = stored.read_folder(tmp_path)
    kinds = {one.path.stem: one.kind for one in files}
    assert kinds == {"f": stored.LADDER, "b": stored.BACKWARD_LADDER}
    newest = stored.newest(files, stored.LADDER)
    assert newest is not None
    assert newest.path.stem == "f"
    loaded = load(tmp_path / "b.json")
    assert loaded.pass_ == "backward"
    assert loaded.setting == "Some GPU, FP16, 16 heads of 128, backward, no mask unless said"

# SPDX-License-Identifier: Apache-2.0
"""A file is replaced as a whole, what is no file is written to; a record has a line a row."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention.files import reading, write_record, write_whole

RESULTS = Path(__file__).resolve().parents[1] / "results"


def test_a_reader_that_came_before_keeps_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file"
    write_whole(path, "old")
    with path.open() as reader:
        write_whole(path, "new, and longer")
        assert (reader.read(), path.read_text()) == ("old", "new, and longer")
    assert [one.name for one in path.parent.iterdir()] == ["file"]


def test_when_writing_fails_the_old_text_stays(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "\ud800")
    assert (tmp_path / "file").read_text() == "old"


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    os.mkfifo(pipe := tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text")
    reader.join(timeout=10)
    assert (read, pipe.is_fifo()) == (["text"], True)


def test_a_record_comes_back_and_has_a_line_a_field_and_a_row(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "r.json"
    record: dict[str, Any] = {
        "device": 'a "GPU"',
        "shape": [1, 2],
        "peak": {"copy": 0.1, "none": None},
        "rows": [{"ms": 1e-30, "peers": {"fa2": 2.0}}, {"ms": 3}],
        "refused": [],
        "mixed": [{}, 1],
    }
    write_record(path, record)
    assert json.loads(path.read_text()) == record
    assert path.read_text().splitlines() == [
        "{",
        ' "device": "a \\"GPU\\"",',
        ' "shape": [1, 2],',
        ' "peak": {"copy": 0.1, "none": null},',
        ' "rows": [',
        '  {"ms": 1e-30, "peers": {"fa2": 2.0}},',
        '  {"ms": 3}',
        " ],",
        ' "refused": [],',
        ' "mixed": [{}, 1]',
        "}",
    ]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_stored_results_are_as_they_would_be_written(path: Path, tmp_path: Path) -> None:
    write_record(tmp_path / path.name, json.loads(path.read_text()))
    assert (tmp_path / path.name).read_text() == path.read_text()


def test_what_is_wrong_with_a_file_names_it() -> None:
    path = Path("nowhere.json")
    what = r"nowhere\.json is not a table: FileNotFoundError"
    with pytest.raises(UnsupportedError, match=what), reading(path, "a table"):
        path.read_text()
    with pytest.raises(UnsupportedError, match=r"^as it is$"), reading(path, "a table"):
        raise UnsupportedError("as it is")

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
from flash_attention.files import (
    check_writable,
    parse_json,
    read_json,
    write_record,
    write_whole,
)

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
    with pytest.raises(UnsupportedError, match=r"cannot write .*file: it is no text in UTF-8; cho"):
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


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is no JSON at line 1, column 1: Expecting value"),
        (b'{"a": 1,\n]', "it is no JSON at line 2, column 1: Expecting property name"),
        (b"\xff\xfe", "it is no text in UTF-8"),
        (b"[" * 100_000, "its lists and objects are nested too deeply"),
        (b"9" * 5000, "its number 9{90,}.* is too large"),
        (b"[-9223372036854775809]", "its number -9223372036854775809 is too large"),
        (b'"\\ud800"', "a string in it has half of a surrogate pair"),
    ],
    ids=["empty", "broken", "binary", "deep", "digits", "large", "surrogate"],
)
def test_a_file_that_is_no_json_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(UnsupportedError, match=rf"t\.json is not a table: {why}"):
        read_json(tmp_path / "t.json", "a table")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.json", "^nowhere.json is not a table: No such file or directory$"),
        ("/", "^/ is not a table: Is a directory$"),
        ("a\0b", "is not a table: embedded null byte"),
        ("x" * 300, "is not a table: File name too long"),
        (None, "^None is not a table: .* not NoneType"),
        (7, "^7 is not a table: .* not int"),
    ],
)
def test_a_path_that_is_no_file_is_named(path: Any, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        read_json(path, "a table")


def test_numbers_and_strings_of_json_come_as_they_are() -> None:
    assert parse_json("[9223372036854775807, 1e400, -1]") == [2**63 - 1, float("inf"), -1]
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"


def test_a_file_that_is_too_large_is_not_read() -> None:
    with pytest.raises(UnsupportedError, match=r"/dev/zero is not a table: it has more than"):
        read_json("/dev/zero", "a table")


@pytest.mark.parametrize("path", ["/", "/proc/none/x", "/dev/full", "a\0b", "x" * 300])
def test_a_place_that_cannot_be_written_is_named(path: str) -> None:
    with pytest.raises(UnsupportedError, match=r"^cannot write .*; choose another place$"):
        write_whole(path, "text")


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        check_writable(tmp_path / name)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("old", "old")]
    with pytest.raises(UnsupportedError, match=r"cannot write .*: what is above it is no folder"):
        check_writable(tmp_path / "old" / "file")

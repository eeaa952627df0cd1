# SPDX-License-Identifier: Apache-2.0
"""A file is replaced as a whole, what is no file is written to."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from flash_attention.files import write_whole


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

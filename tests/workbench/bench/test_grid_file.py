# SPDX-License-Identifier: Apache-2.0
"""A grid of one's own is read line by line, and a mistake names its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.grid_file import read_grid


def test_problems_are_read_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(
        "# what the model does\n"
        "batch=4 heads=32 heads_k=8 seq=8192 d=128 causal  # prefill\n\n"
        "heads=16 lengths=100,4096 d=64\n"
        "heads=2 seq=512 seq_q=1 d=256\n"
        "heads=2 seq=512 d=64 causal window=100\n"
    )
    assert read_grid(path) == [
        Point(128, True, 8192, 4, 32, 8),
        Point(64, False, 4096, 2, 16, lengths=(100, 4096)),
        Point(256, False, 512, 1, 2, seq_q=1),
        Point(64, True, 512, 1, 2, window=100),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("heads=2 seq=64", "d missing in 'heads=2 seq=64'; such as 'batch=4"),
        ("head=2 seq=64 d=64", "unknown word 'head'; did you mean 'heads'"),
        ("heads=two seq=64 d=64", "heads is 'two'; pass a whole number from 1 to 1073741824"),
        ("heads=2 seq=0 d=64", "seq is '0'; pass a whole number from 1 to"),
        ("heads=6 heads_k=4 seq=64 d=64", "heads 6 is no multiple of heads_k 4"),
        ("heads=2 seq=64 seq_q=65 d=64", "seq_q 65 is more than seq 64"),
        ("heads=2 seq=64 d=64 window=5", "say causal too"),
        ("heads=2 lengths=5,6 d=64 seq_q=1", "no seq_q and no window"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(f"heads=2 seq=64 d=64\n{line}\n")
    with pytest.raises(UnsupportedError, match=f"mine.txt, line 2: .*{why}"):
        read_grid(path)


def test_a_file_without_problems(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# nothing yet\n")
    with pytest.raises(UnsupportedError, match="names no problem"):
        read_grid(path)
    with pytest.raises(
        UnsupportedError, match=r"gone\.txt is not a file of problems: No such file"
    ):
        read_grid(tmp_path / "gone.txt")


def test_a_number_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(f"heads={'9' * 5000} seq=64 d=64\n")
    with pytest.raises(UnsupportedError, match=r"line 1: heads is '9{90,}\.\.\.; pass a whole"):
        read_grid(path)

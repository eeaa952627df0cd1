# SPDX-License-Identifier: Apache-2.0
"""FA3's library is found and unpacked, and its operator told what the case is."""

from __future__ import annotations

import ctypes
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.peers import line_up
from flash_attention_workbench.bench.peers.fa3 import FA3_VARIABLE, fa3_forward_arguments, load_fa3


def test_a_library_that_is_not_there_or_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case.of(Point(64, False, 64, 1, 2), DType.FP16)
    monkeypatch.setenv(FA3_VARIABLE, str(tmp_path / "gone.so"))
    assert "there is no library" in line_up(["fa3"], case).missing["fa3"]
    packed = tmp_path / "text.so.xz"
    packed.write_bytes(lzma.compress(b"no library at all"))
    assert (
        "text.so.xz is not flash_attn_3_C.so" in line_up(["fa3"], case, fa3=packed).missing["fa3"]
    )


def test_the_runtime_beside_the_library_is_loaded_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []

    def load(path: str, mode: int = 0) -> None:
        assert mode in (0, ctypes.RTLD_GLOBAL)
        loaded.append(Path(path).read_bytes())

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.ops, "load_library", load)
    library = tmp_path / "flash_attn_3_C.so.xz"
    library.write_bytes(lzma.compress(b"operators"))
    with pytest.raises(UnsupportedError, match="with libcudart"):
        load_fa3(library)
    (tmp_path / "libcudart.so.12.xz").write_bytes(lzma.compress(b"runtime"))
    assert load_fa3(library) is torch.ops.flash_attn_3
    assert loaded == [b"runtime", b"operators"]
    other = tmp_path / "_vllm_fa3_C.so"
    other.touch()
    with pytest.raises(UnsupportedError, match="pass upstream's build"):
        load_fa3(other)


def arguments_of(point: Point) -> tuple[Case, list[Any]]:
    case = Case.of(point, DType.BF16)
    arguments = fa3_forward_arguments(case, case.q, case.k, case.v, case.out)
    assert len(arguments) == 34
    given = zip(arguments[:7], (case.q, case.k, case.v, None, None, None, case.out), strict=True)
    assert all(one is other for one, other in given)
    return case, arguments


def test_dense_tensors_have_no_starts() -> None:
    _, arguments = arguments_of(Point(64, True, 100, 3, 2))
    assert arguments[7:23] == [None] * 16
    assert arguments[23:] == [0.125, True, -1, -1, 0, 0.0, False, None, 1, None, 0]


def test_packed_sequences_have_starts_and_a_longest() -> None:
    case, arguments = arguments_of(Point(64, False, 50, 3, 2, lengths=(50, 20, 30)))
    assert arguments[7] is arguments[8] is case.starts
    assert case.starts is not None
    assert case.starts.tolist() == [0, 50, 70, 100]
    assert arguments[9:14] == [None, None, None, 50, 50]
    assert arguments[24:27] == [False, -1, -1]


def test_a_window_and_few_queries() -> None:
    _, window = arguments_of(Point(64, True, 100, 1, 2, window=32))
    assert window[24:27] == [True, 31, 0]
    _, few = arguments_of(Point(64, False, 100, 2, 4, heads_k=2, seq_q=1))
    assert few[7:23] == [None] * 16
    assert few[31] == 0  # it chooses the number of splits

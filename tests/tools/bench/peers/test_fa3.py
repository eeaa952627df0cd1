# SPDX-License-Identifier: Apache-2.0
"""FA3's library is found and unpacked, and its operator told what the case is."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import torch

from flash_attention.kernel_configs import DType
from flash_attention.tools.bench.case import Case
from flash_attention.tools.bench.grid import Point
from flash_attention.tools.bench.names import FA3_VARIABLE
from flash_attention.tools.bench.peers import line_up
from flash_attention.tools.bench.peers.fa3 import (
    FA3_ARGUMENTS,
    fa3_arguments,
    load_fa3,
)


def test_a_library_that_is_not_there_or_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case.of(Point(64, False, 64, 1, 2), DType.FP16)
    monkeypatch.setenv(FA3_VARIABLE, str(tmp_path / "gone.so"))
    assert "there is no library" in line_up(["fa3"], case).missing["fa3"]
    packed = tmp_path / "text.so.xz"
    packed.write_bytes(lzma.compress(b"no library at all"))
    assert "text.so" in line_up(["fa3"], case, fa3=packed).missing["fa3"]


def test_a_packed_library_is_loaded_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(
        torch.ops, "load_library", lambda path: loaded.append(Path(path).read_bytes())
    )
    packed = tmp_path / "fa3.so.xz"
    packed.write_bytes(lzma.compress(b"machine code"))
    with pytest.raises((AttributeError, RuntimeError)):
        load_fa3(packed)
    assert loaded == [b"machine code"]


def test_the_operator_gets_its_37_arguments_in_order() -> None:
    names = list(FA3_ARGUMENTS)
    assert len(names) == 37
    assert names[:7] == ["q", "k", "v", "k_new", "v_new", "q_v", "out"]
    assert names.index("cu_seqlens_q") == 7
    assert names.index("max_seqlen_q") == 12
    assert names.index("softmax_scale") == 23
    assert names[-1] == "cp_tot_seqused_k"


def told(point: Point) -> dict[str, object]:
    """Of the arguments, those that are no rows; tensors as lists."""
    arguments = fa3_arguments(Case.of(point, DType.BF16))
    assert set(arguments) <= set(FA3_ARGUMENTS)
    assert arguments["out"].shape == arguments["q"].shape
    rows = ("q", "k", "v", "out", "softmax_scale")
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
        if name not in rows
    }


def test_one_length_is_told_as_packed_entries() -> None:
    assert told(Point(64, True, 100, 3, 2)) == {
        "cu_seqlens_q": [0, 100, 200, 300],
        "cu_seqlens_k": [0, 100, 200, 300],
        "max_seqlen_q": 100,
        "max_seqlen_k": 100,
        "is_causal": True,
    }


def test_packed_entries_a_window_and_few_queries() -> None:
    packed = told(Point(64, False, 50, 3, 2, lengths=(50, 20, 30)))
    assert packed["cu_seqlens_q"] == packed["cu_seqlens_k"] == [0, 50, 70, 100]
    assert packed["max_seqlen_k"] == 50
    window = told(Point(64, True, 100, 1, 2, window=32))
    assert (window["window_size_left"], window["window_size_right"]) == (31, 0)
    few = told(Point(64, False, 100, 2, 4, heads_k=2, seq_q=1))
    assert (few["cu_seqlens_q"], few["cu_seqlens_k"]) == ([0, 1, 2], [0, 100, 200])
    assert few["num_splits"] == 0

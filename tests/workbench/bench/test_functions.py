# SPDX-License-Identifier: Apache-2.0
"""The grid of functions: its points, and that all contenders compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flash_attention.attention import attention
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench import functions
from flash_attention_workbench.bench.function_case import BUILT_IN, OURS, FunctionCase
from flash_attention_workbench.bench.functions import (
    KINDS,
    PASSES,
    Drawn,
    FunctionPoint,
    function_points,
)
from flash_attention_workbench.bench.peers.flex_functions import mask_mod, score_mod

SEQ, BATCH, HEADS = 48, 3, 4


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances and documents that matter in short sequences."""
    monkeypatch.setattr(functions, "DOCUMENT", 12)
    monkeypatch.setattr(functions, "WINDOW", 9)


def point_of(name: str) -> FunctionPoint:
    return FunctionPoint(name, 64, SEQ, BATCH, HEADS)


def places() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every batch, head, query and key, each in a dimension of its own."""
    batch, head, query, key = torch.meshgrid(
        *(torch.arange(size) for size in (BATCH, HEADS, SEQ, SEQ)), indexing="ij"
    )
    return batch, head, query, key


def test_every_point_has_the_same_work() -> None:
    points = function_points()
    assert len(points) == len(set(points)) == 9 * 2 * 3 * 2
    assert {point.batch * point.seq_len for point in points} == {16384}
    assert {point.heads * point.d_head for point in points} == {2048}
    assert {point.measured for point in points} == set(PASSES.values())


def test_a_part_of_the_grid() -> None:
    (point,) = function_points(["window"], [64], [4096], ["backward"])
    assert point == FunctionPoint("window", 64, 4096, 4, 32, PASSES["backward"])
    assert point.label == "window, 4 x 4096, 32 h, d 64, backward"
    assert function_points([]) == []
    with pytest.raises(UnsupportedError, match="'windows'; did you mean 'window'"):
        function_points(["windows"])
    with pytest.raises(UnsupportedError, match="unknown pass 'both'"):
        function_points(passes=["both"])
    with pytest.raises(UnsupportedError, match="1000 and 64 do not"):
        function_points(seq_lens=[1000])


@pytest.mark.parametrize("name", KINDS)
def test_flex_has_the_same_functions(name: str) -> None:
    drawn, at = Drawn.of(point_of(name)), places()
    kind, theirs = KINDS[name], mask_mod(name, drawn)
    assert (kind.mask is None) == (theirs is None)
    if kind.mask is not None and theirs is not None:
        seen = theirs(*at)
        assert torch.equal(kind.mask(drawn)(*at), seen)
        assert 0 < int(seen.sum()) < seen.numel()
    change = score_mod(name, drawn)
    assert (kind.score is None) == (change is None)
    if kind.score is not None and change is not None:
        before = torch.randn(BATCH, HEADS, SEQ, SEQ)
        assert torch.equal(kind.score(drawn)(before, *at), change(before, *at))


@pytest.mark.parametrize("name", KINDS)
def test_seen_keys_are_counted(name: str) -> None:
    drawn = Drawn.of(point_of(name))
    mask = mask_mod(name, drawn)
    seen = BATCH * HEADS * SEQ**2 if mask is None else int(mask(*places()).sum())
    assert HEADS * KINDS[name].cells(drawn) == seen


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.score is None])
def test_a_built_in_call_says_the_same(name: str) -> None:
    case = FunctionCase.of(point_of(name))
    if KINDS[name].built_in is None:
        with pytest.raises(UnsupportedError, match="no built-in kernel"):
            case.contender(BUILT_IN)
        return
    ours, theirs = (case.contender(which).run() for which in (OURS, BUILT_IN))
    torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-2)
    plain = attention(case.q, case.k, case.v)
    assert float((ours - plain).abs().max()) > 0.1


def test_documents_have_the_mean_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for seq in (1024, 4096, 16384):
        drawn = Drawn.of(FunctionPoint("documents", 128, seq, 16384 // seq, 16))
        assert [sum(of) for of in drawn.documents] == [seq] * (16384 // seq)
        starts = {place for of in drawn.documents for place in torch.tensor(of).cumsum(0).tolist()}
        assert len(starts - {seq}) > 10
        pieces = sum(map(len, drawn.documents))
        assert 16 <= pieces <= 16 + 16384 // seq
        assert int(drawn.ids.diff().clamp(min=0).sum()) == pieces - 16384 // seq
        again = Drawn.of(FunctionPoint("documents", 128, seq, 16384 // seq, 16))
        assert again.documents == drawn.documents


def test_some_heads_have_what_they_capture() -> None:
    drawn = Drawn.of(point_of("additive_bias"))
    some = drawn.of_heads([1, 3])
    assert drawn.bias is not None
    assert some.bias is not None
    for whole, part in ((drawn.slopes, some.slopes), (drawn.table, some.table)):
        assert torch.equal(whole[[1, 3]], part)
    assert torch.equal(drawn.bias[[1, 3]], some.bias)

# SPDX-License-Identifier: Apache-2.0
"""Peers agree with the oracle on a GPU; anywhere, those that are missing say why."""

from __future__ import annotations

import pytest

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import DType
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Point
from flash_attention_workbench.bench.peers import PEERS, line_up
from flash_attention_workbench.bench.peers.fa3 import FA3_VARIABLE

SELF = Point(64, False, 64, 1, 2)


def test_without_a_gpu_every_peer_is_missing_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FA3_VARIABLE, raising=False)
    lineup = line_up(PEERS, Case.of(SELF, DType.FP16))
    assert lineup.contenders == ()
    assert lineup.missing == {
        "fa3": "no library of it is named; set FLASH_ATTENTION_FA3 to its path",
        **dict.fromkeys(PEERS[1:], "needs CUDA tensors, q is on cpu"),
    }


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"unknown peer 'fa9'; did you mean 'fa\d'\? \(there"
    ):
        line_up(["fa9"], Case.of(SELF, DType.FP16))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "point",
    [
        Point(64, False, 256, 2, 4),
        Point(64, True, 256, 2, 4),
        Point(128, True, 512, 1, 8, heads_k=2),
        Point(128, False, 512, 2, 8, heads_k=2, seq_q=1),
        Point(128, True, 512, 1, 4, window=100),
        Point(128, True, 256, 3, 4, lengths=(256, 130, 64)),
    ],
    ids=lambda point: point.label,
)
def test_peers_compute_attention(point: Point) -> None:
    case = Case.of(point, DType.BF16, "cuda")
    lineup = line_up([name for name in PEERS if name != "fa3"], case)  # which has its own process
    assert "fa2" in [contender.name for contender in lineup.contenders], lineup.missing
    judge = case.judge()
    for contender in lineup.contenders:
        contender.poison()
        check = judge.check(contender.run())
        assert check.ok, f"{contender.name}: {check}"

# SPDX-License-Identifier: Apache-2.0
"""A step of the serving grid: on a CPU with made-up times, and measured on a GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError
from flash_attention.files import write_record
from flash_attention.reference.oracle import oracle
from flash_attention_workbench.bench import serving_run
from flash_attention_workbench.bench.peers.fa3 import FA3, FA3_VARIABLE
from flash_attention_workbench.bench.serving import SERVING, Layer, Step
from flash_attention_workbench.bench.serving_run import (
    BATCHED,
    INVARIANT,
    PACKED,
    How,
    ServingRow,
    call_of,
    host_times,
    load_serving,
    measure_step,
    summary,
)
from tests.workbench.bench.made_up_times import made_up_times

CPU = torch.device("cpu")
SMALL = Layer(heads=4, heads_k=2, d=64, page=16)
MIXED = Step("mixed", (1, 20, 1), (33, 70, 5), SMALL)
EVEN = Step("even", (2, 2), (33, 70), replace(SMALL, sinks=True))
TIMES = {PACKED: 0.5, BATCHED: 0.4, INVARIANT: 0.6, FA3: 1.0}  # milliseconds


@pytest.fixture(autouse=True)
def made_up_clock(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(serving_run, "time_in_turn", made_up_times(TIMES.__getitem__))


def test_outputs_of_ours_are_right_in_all_ways() -> None:
    row = measure_step(EVEN, How(CPU, peers=()))
    assert row.us == {PACKED: 500.0, BATCHED: 400.0, INVARIANT: 600.0}
    assert row.ok
    assert max(row.error_ratio.values()) <= 2
    assert (row.sequences, row.queries, row.keys, row.ratio) == (2, 4, 103, None)
    assert row.gbps == pytest.approx(EVEN.kv_bytes / 500e-6 * 1e-9)


def test_a_mixture_has_no_batch_dimension() -> None:
    row = measure_step(MIXED, How(CPU))
    assert row.us.keys() == {PACKED, INVARIANT}
    assert "sm_90" in row.refused[FA3]
    assert row.ok


def test_a_peer_is_seen_beside_ours_if_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def peer(factor: float) -> Callable[..., Callable[[], Tensor]]:
        def run(call: Any, longest: int, library: Path | None) -> Callable[[], Tensor]:
            assert longest == 70
            right = oracle(*call[:3], **call.keywords()).bfloat16()
            return lambda: factor * right

        return run

    monkeypatch.setattr(serving_run, "fa3_run", peer(1.0))
    assert measure_step(MIXED, How(CPU)).ratio == 2
    monkeypatch.setattr(serving_run, "fa3_run", peer(1.1))
    wrong = measure_step(MIXED, How(CPU))
    assert (wrong.ratio, wrong.ok) == (None, True)
    assert wrong.refused[FA3].startswith("wrong: max error")


def test_a_wrong_output_of_ours_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves_a_row(call: Any) -> Callable[[], Tensor]:
        right = oracle(*call[:3], **call.keywords()).bfloat16()
        right[3] = math.nan
        return lambda: right

    monkeypatch.setattr(serving_run, "packed_run", leaves_a_row)
    row = measure_step(MIXED, How(CPU, peers=()))
    assert (row.ok, row.us, row.gbps) == (False, {}, None)
    assert summary([row])[0].startswith("mixed, 4:2 h, d 64, pages of 16: packed: wrong")


def test_pages_belong_to_one_sequence_each() -> None:
    call = call_of(MIXED, CPU)
    assert call.block_table is not None
    pages = [-(-keys // 16) for keys in MIXED.keys]
    used = [int(p) for row, n in zip(call.block_table, pages, strict=True) for p in row[:n]]
    assert sorted(used) == list(range(call.k.shape[0]))
    again = call_of(MIXED, CPU)
    assert torch.equal(call.q, again.q)
    assert again.block_table is not None
    assert torch.equal(call.block_table, again.block_table)


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    row = measure_step(EVEN, How(CPU, peers=()))
    record = {
        **{"device": "GPU", "date": "2026-11-17", "commit": "abc", "command": "bench"},
        **{"repeats": 25, "l2": "cold"},
        **{"grid": SERVING, "rows": [asdict(row)], "host_us": {PACKED: {"new": 5.0, "known": 2.0}}},
    }
    path = tmp_path / "serving.json"
    write_record(path, record)
    read = load_serving(path)
    assert read.rows == (row,)
    assert read.host_us == {PACKED: {"new": 5.0, "known": 2.0}}
    write_record(path, record | {"grid": "decode"})
    with pytest.raises(UnsupportedError, match="'serving' is needed"):
        load_serving(path)


def row_of(label: str, ours: float, theirs: float) -> ServingRow:
    us = {PACKED: ours, FA3: theirs}
    return ServingRow(label, "32:8 h", 1, 1, 10, "hopper", us, {}, {}, 100.0)


def test_the_mean_is_geometric() -> None:
    told = summary([row_of("a", 1.0, 2.0), row_of("b", 2.0, 1.0)])
    assert told == ["times as fast as FA3: geometric mean 1.000, least 0.500 (b, 32:8 h)"]


@pytest.mark.gpu
@pytest.mark.parametrize("layer", [SMALL, replace(SMALL, page=64, d=128, of_8_bits=True)])
def test_a_step_is_timed_on_a_gpu(layer: Layer) -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    peers = (FA3,) if os.environ.get(FA3_VARIABLE) else ()
    for step in (MIXED, EVEN):
        row = measure_step(replace(step, layer=layer), How(gpu, repeats=3, peers=peers))
        assert row.ok, row.refused
        assert all(0 < us < 1e4 for us in row.us.values())
        assert "hopper" in row.config or torch.cuda.get_device_capability() != (9, 0)


@pytest.mark.gpu
def test_the_host_is_timed_beside_a_gpu() -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    host = host_times(How(gpu, peers=()), steps=3)
    assert host.keys() == {PACKED}
    assert all(0 < us < 1e6 for us in host[PACKED].values())

# SPDX-License-Identifier: Apache-2.0
"""What the command refuses, and what it prints and writes of made-up measurements."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention_workbench.bench.beside_fa3 import Asked
from flash_attention_workbench.bench.clocks import Clocks
from flash_attention_workbench.bench.grid import Measured, Point
from flash_attention_workbench.bench.grid_run import PointResult
from flash_attention_workbench.commands.bench import command
from tests.workbench.bench.made_up_grid import grid_row, made_up_grid
from tests.workbench.commands.invoke import invoke, refuse

CONFIG = "hopper(BF16, 64, 2, 128, 2): tma"


@pytest.fixture
def made_up_gpu(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A GPU on which ours takes 1 ms, FA3 2 ms, and cuDNN is missing; the calls it got."""
    calls: list[dict[str, Any]] = []

    def measure(given: Asked, configs: object, peers: Any, beside: object) -> PointResult:
        calls.append({**vars(given), "configs": configs, "peers": peers})
        point = given.point
        place = (point.d_head, point.causal, point.seq_len)
        return PointResult((grid_row(CONFIG, place, 1.0, {"fa3": 2.0}),), {"cudnn": "not here"})

    facts = {name: made_up_grid()[name] for name in ("device", "date", "commit")}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(command, "describe", lambda device: facts)
    monkeypatch.setattr(command, "compile_all", lambda settings: None)
    monkeypatch.setattr(command, "measure_point", measure)
    monkeypatch.setattr(command, "read_clocks", lambda device: Clocks(1980, 3201, 400, 50, 0))
    return calls


def test_a_grid_of_gradients_ends_with_its_means(
    made_up_gpu: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Asked, tuple[str, ...]]] = []

    def measure(given: Asked, configs: object, peers: Any, beside: object) -> PointResult:
        asked.append((given, peers))
        point = given.point
        row = grid_row(CONFIG, (point.d_head, point.causal, point.seq_len), 1.0, {"fa3": 1.5})
        own = {"measured": "BACKWARD", "deterministic_ms": 1.25, "beside": {"fa3": 0.75}}
        return PointResult((replace(row, **own),), {})  # type: ignore[arg-type]

    monkeypatch.setattr(command, "measure_gradients", measure)
    results = tmp_path / "r.json"
    words = ("--grid", "backward", "--d-head", "64", "--full", "--seq", "512,1024")
    text = invoke("bench", *words, "--json", str(results))
    assert made_up_gpu == []
    assert [given.point.seq_len for given, _ in asked] == [512, 1024]
    assert {given.measured for given, _ in asked} == {Measured.BACKWARD}
    assert {peers for _, peers in asked} == {("fa3", "cudnn", "fa2")}
    assert "ours beside FA3: geometric mean x2.000 over 2 points" in text
    assert "deterministic beside our other mode: geometric mean x0.800" in text
    assert json.loads(results.read_text())["grid"] == "backward"


def test_a_point_without_enough_memory_does_not_end_the_grid(
    made_up_gpu: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(given: Asked, configs: object, peers: Any, beside: object) -> PointResult:
        point = given.point
        if point.seq_len == 512:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 35.50 GiB. GPU 0")
        return PointResult((grid_row(CONFIG, (64, False, point.seq_len), 1.0, {"fa3": 1.5}),), {})

    monkeypatch.setattr(command, "measure_point", measure)
    words = ("--grid", "fa3", "--d-head", "64", "--full", "--seq", "512,1024")
    invoke("bench", *words, "--json", str(tmp_path / "r.json"))
    stored = json.loads((tmp_path / "r.json").read_text())
    assert [row["seq"] for row in stored["rows"]] == [1024]
    assert [(no["seq_len"], no["name"], no["why"]) for no in stored["refused"]] == [
        (512, "ours", "CUDA out of memory at this point")
    ]


def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path) -> None:
    assert "did you mean 'decode'? (there are fa3, seed" in refuse("bench", "--grid", "decoed")
    assert "unknown peer 'cudn'; did you mean 'cudnn'?" in refuse("bench", "--peers", "fa3,cudn")
    assert "--d-head is '64,x'; pass whole numbers" in refuse("bench", "--d-head", "64,x")
    assert "dtype 'fp8' is not supported" in refuse("bench", "--dtype", "fp8")
    configs = tmp_path / "configs.txt"
    configs.write_text("hopper(BF16, 64, 2, 128, 2): tmaa\n")
    assert "did you mean 'tma'?" in refuse("bench", "--configs", str(configs))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    assert "torch finds none" in refuse("bench", "--grid", "decode")
    said = refuse("bench", "--grid", "training", "--graph")
    assert "--graph is for grids of the forward pass, and training measures forward and" in said


def test_what_it_measures_prints_and_writes(
    made_up_gpu: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLASH_ATTENTION_FA3", raising=False)
    monkeypatch.delenv("FLASH_ATTENTION_TABLE", raising=False)
    files = [tmp_path / name for name in ("r.json", "r.csv", "r.png")]
    written = [word for file in files for word in (f"--{file.suffix[1:]}", str(file))]
    written[written.index("--png")] = "--plot"
    text = invoke("bench", "--d-head", "64", "--causal", "--seq", "512,1024", "--hot", *written)
    assert [call["point"] for call in made_up_gpu] == [
        Point(64, True, 512, 32, 32),
        Point(64, True, 1024, 16, 32),
    ]
    assert {(call["hot"], call["repeats"]) for call in made_up_gpu} == {(True, 25)}
    speed = 4 * 32 * 32 * 512 * 512 * 64 // 2 / 1e9
    assert re.search(
        rf"32 x 512, 32 h, d 64, causal +1 +{speed:.0f} +1.0% +{speed / 2:.0f} \(2.00\)", text
    )
    assert "missing at 2 points: cudnn: not here" in text
    assert "selected: geometric mean x2.000 over 2 points" in text
    assert "before: 1980 MHz SM, 3201 MHz memory, 400 W" in text
    again = (
        "flash-attention bench --grid fa3 --dtype bf16 --d-head 64 --causal --seq 512,1024"
        " --peers fa3,cudnn,fa2 --repeats 25 --hot"
    )
    assert f"again: {again}\n" in text
    record = json.loads(files[0].read_text())
    assert (record["command"], record["l2"], record["grid"]) == (again, "hot", "fa3")
    assert record["clocks"]["after"]["watts"] == 400
    assert [row["seq"] for row in record["rows"]] == [512, 1024]
    assert len(record["refused"]) == 2
    assert len(files[1].read_text().splitlines()) == 3
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_a_grid_of_ones_own_goes_by_the_name_of_its_file(
    made_up_gpu: list[dict[str, Any]], tmp_path: Path
) -> None:
    path, results = tmp_path / "mine.txt", tmp_path / "r.json"
    path.write_text("heads=2 seq=512 d=64\nheads=2 seq=512 d=128 causal\n")
    text = invoke(
        "bench", "--grid", str(path), "--causal", "--peers", "none", "--json", str(results)
    )
    assert [call["point"].d_head for call in made_up_gpu] == [128]
    assert made_up_gpu[0]["peers"] == ()
    assert json.loads(results.read_text())["grid"] == "mine"
    assert f"--grid {path} --dtype bf16 --causal" in text
    assert "has no problem with --seq 64" in refuse("bench", "--grid", str(path), "--seq", "64")


def test_a_table_beside_the_heuristic(
    made_up_gpu: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_TABLE", "my table.json")
    text = invoke("bench", "--grid", "seed", "--seq", "512", "--peers", "none", "--heuristic")
    assert [call["heuristic"] for call in made_up_gpu] == [True]
    again = "again: FLASH_ATTENTION_TABLE='my table.json' flash-attention bench --grid seed"
    assert again in text
    assert " --peers none --heuristic " in text.partition(again)[2]


def test_a_file_that_cannot_be_written_stops_it_at_once(
    made_up_gpu: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert "cannot write" in refuse("bench", "--json", str(tmp_path))
    assert made_up_gpu == []


def test_json_on_standard_output_is_alone_there(made_up_gpu: list[dict[str, Any]]) -> None:
    record = json.loads(invoke("bench", "--grid", "seed", "--seq", "512,1024", "--json", "-"))
    assert [row["seq"] for row in record["rows"]] == [512, 1024]
    assert len(made_up_gpu) == 2


def test_a_plot_without_matplotlib_stops_it_at_once(
    made_up_gpu: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refuse("bench", "--plot", str(tmp_path / "r.png"))
    assert "--plot draws with matplotlib, which is not installed" in said
    assert "pip install 'flash-attention-jit[plot]'" in said
    assert made_up_gpu == []


def test_two_files_are_compared(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(made_up_grid()))
    slower = made_up_grid()
    slower["rows"][0]["ms"] *= 1.1
    second.write_text(json.dumps(slower))
    text = invoke("bench", "--compare", str(first), str(second))
    assert re.search(r"32 x 512, 32 h, d 64, full +ours .* 0\.909", text)
    assert re.search(r"ours +3 +0\.969 +0\.909 +1\.000 +apart: 3\.1%", text)
    assert re.search(r"fa2 +2 +1\.000 +1\.000 +1\.000 +agree: 0\.0%", text)
    assert "is not a measured grid" in refuse("bench", "--compare", str(first), __file__)
    second.write_text('{"grid": "fa3"}')
    said = refuse("bench", "--compare", str(first), str(second))
    assert said.endswith(
        "device is missing; there are device, date, commit, command, grid, dtype, rows"
    )


@pytest.mark.gpu
def test_a_point_on_a_gpu(tmp_path: Path) -> None:
    results = tmp_path / "r.json"
    arguments = ("--grid", "seed", "--seq", "512", "--peers", "fa2", "--repeats", "3")
    invoke("bench", *arguments, "--json", str(results))
    record = json.loads(results.read_text())
    assert [row["ok"] for row in record["rows"]] == [True]
    assert record["rows"][0]["peers"]["fa2"] > 0
    assert record["command"].startswith("flash-attention bench --grid seed --dtype fp16")

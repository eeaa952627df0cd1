# SPDX-License-Identifier: Apache-2.0
"""`emulate` prints what `flash_attention.emulate` returns, and its exit code tells the verdict."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from flash_attention.reference.judge import check_output, generate_qkv
from tests.emulator.ampere_mutations import BARRIERS, WAITS
from tests.emulator.edits import plant
from tests.emulator.planting import Mutation
from tests.workbench.commands.invoke import invoke, refuse

SMALL = ("--seq", "128", "--heads", "1", "--d-head", "64")


def test_json_holds_the_counters_of_the_same_run() -> None:
    report = json.loads(invoke("emulate", "--rung", "2", *SMALL, "--dtype", "bf16", "--json", "-"))
    q, k, v = generate_qkv(1, 128, 1, 64, DType.BF16)
    config = get_ladder(DType.BF16, 64, 1)[1].config
    result = emulate(config, q, k, v)
    assert report["config"] == config.short_form()
    assert report["shape"] == [1, 128, 1, 64]
    assert report["ok"] is True
    assert report["check"]["error"] == check_output(result.output, q, k, v).error
    assert report["counters"] == json.loads(json.dumps(result.counters.to_dict()))
    assert (report["arch"], report["schedule"], report["findings"]) == ("sm_80", "lockstep", [])


def cell(printed: str, name: str) -> str:
    (line,) = re.findall(rf"^ *{re.escape(name)} +(\S+) *$", printed, re.MULTILINE)
    return str(line)


def test_the_tables_show_conflicts_sectors_and_classes() -> None:
    printed = invoke("emulate", "--rung", "1", *SMALL, "--schedule", "random", "--seed", "4")
    q, k, v = generate_qkv(1, 128, 1, 64, DType.FP16)
    counters = emulate(get_ladder(DType.FP16, 64, 1)[0].config, q, k, v).counters
    assert "output: right" in printed
    assert "findings: none" in printed
    assert cell(printed, "bank conflicts") == f"{counters.conflicts:,}"
    assert cell(printed, "warp instructions") == f"{counters.instructions.total():,}"
    assert cell(printed, "bytes loaded") == f"{counters.bytes_loaded:,}"
    products = sum(n for opcode, n in counters.instructions.items() if opcode.startswith("mma"))
    assert re.search(rf"tensor core +{products:,} ", printed)
    assert re.search(r"ldmatrix\S+trans\S+ +fa/sm80/forward\.cuh:\d+ ", printed)


def test_a_kernel_for_tangents() -> None:
    config = "hopper_tangent(BF16, 64, 2, 96, 2): lazy_8+dynamic_32"
    printed = invoke("emulate", "--config", config, "--seq", "96", "--heads", "1", "--causal")
    assert re.search("(o|o_tangent|lse_tangent): right", printed)
    assert "findings: none" in printed
    products = 6 * 2 * 128 * 96 * 64  # of a tile of 128 rows with one key block
    assert cell(printed, "tensor-core FLOP") == f"{products:,}"


def test_a_config_in_its_short_form() -> None:
    short = get_ladder(DType.BF16, 64, 1)[10].config.short_form()
    assert short in invoke("emulate", "--config", short, "--seq", "128", "--heads", "1")


@pytest.mark.parametrize("mutation", [WAITS[0], BARRIERS[-1]], ids=lambda m: m.name)
def test_findings_are_printed_and_fail(
    mutation: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(mutation.edits, tmp_path, monkeypatch)
    arguments = ("emulate", "--config", mutation.scene.config.short_form(), "--seq", "128")
    printed = invoke(*arguments, "--heads", "1", exit_code=1)
    assert f"[{mutation.caught_by}]" in printed
    assert ("output: right" in printed) == mutation.silent


def rung_file(folder: Path, old: str = "", new: str = "", *options: str) -> Path:
    """The file of rung 2, with one change."""
    text = invoke("ladder", "show", "2", *options)
    assert old in text
    path = folder / "mine.cu"
    path.write_text(text.replace(old, new, 1))
    return path


def test_the_file_of_a_rung_runs_as_the_rung(tmp_path: Path) -> None:
    options = ("--dtype", "bf16", "--d-head", "64")
    path = rung_file(tmp_path, "", "", *options)
    ran = json.loads(invoke("emulate", str(path), "--seq", "128", "--heads", "1", "--json", "-"))
    q, k, v = generate_qkv(1, 128, 1, 64, DType.BF16)
    config = get_ladder(DType.BF16, 64, 1)[1].config
    result = emulate(config, q, k, v)
    assert (ran["ok"], ran["config"]) == (True, config.short_form())
    assert ran["check"]["error"] == check_output(result.output, q, k, v).error
    assert ran["counters"]["instructions"] == result.counters.to_dict()["instructions"]


def test_a_row_stride_that_is_compiled_in_is_that_of_the_tensors(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(invoke("ladder", "show", "16", "--heads", "3"))
    assert "output: right" in invoke("emulate", str(path), "--seq", "128", "--heads", "2")


def test_a_changed_file_is_found_out_at_its_own_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wait = "    b.template wait<0>();\n    __syncthreads();  // K has arrived\n"
    path = rung_file(tmp_path, wait, wait.replace("wait<0>", "wait<1>"))
    printed = invoke("emulate", path.name, "--seq", "128", exit_code=1)
    assert "output: wrong" in printed
    assert "[race]" in printed
    number, code = re.findall(r"mine\.cu:(\d+)  (ptx::ldmatrix_x4\(k.*)", printed)[0]
    assert path.read_text().splitlines()[int(number) - 1].strip() == code
    wrong = rung_file(tmp_path, "return ptx::exp2((s - offset)", "return ptx::exp2((s + offset)")
    printed = invoke("emulate", wrong.name, "--seq", "128", exit_code=1)
    assert "output: wrong" in printed
    assert "findings: none" in printed
    assert printed.splitlines()[-1].startswith("how to fix it (numbers): Nothing raced")


def test_the_hottest_lines_of_a_file_stand_with_their_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = rung_file(tmp_path)
    printed = invoke("emulate", path.name, "--seq", "128", "--heads", "1")
    hottest = printed.partition("hottest in shared memory")[2].splitlines()[2]
    numbers = [int(n) for n in re.findall(r"mine\.cu:(\d+)", hottest)]
    instruction, caller = (path.read_text().splitlines()[n - 1] for n in numbers)
    assert "smem" in instruction
    assert "ptx::ldmatrix_x4" in caller


def test_a_file_that_cannot_run_is_refused(tmp_path: Path) -> None:
    path = rung_file(tmp_path, "b.load_k(step)", "b.load_k(stop)")
    line = path.read_text()[: path.read_text().index("load_k(stop)")].count("\n") + 1
    assert f"mine.cu({line}): error: identifier" in refuse("emulate", str(path))
    path = rung_file(tmp_path)
    assert "and this call needs" in refuse("emulate", str(path), "--causal")
    refused = refuse("emulate", str(path), "--rung", "3", "--plant", "missing-wait")
    assert "--rung and --plant would choose another; leave them out" in refused
    assert "has no line `// config: ...`" in refuse("emulate", str(rung_file(tmp_path, "config:")))
    assert "not a kernel config" in refuse(
        "emulate", str(rung_file(tmp_path, "config: ", "config: x"))
    )
    assert "cannot be read: No such file" in refuse("emulate", str(tmp_path / "none.cu"))


def test_bad_choices_are_refused() -> None:
    assert "unknown schedule 'fast'; choose from lockstep" in refuse(
        "emulate", "--schedule", "fast", *SMALL
    )
    assert "there is no rung 99" in refuse("emulate", "--rung", "99")
    assert "there is no rung 0" in refuse("emulate", "--rung", "0")
    assert "not a kernel config" in refuse("emulate", "--config", "fastest")

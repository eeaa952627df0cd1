# SPDX-License-Identifier: Apache-2.0
"""`ladder run`: the inspected form everywhere, the measured one on a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.features import CAUSAL
from flash_attention.families.passes import Pass
from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from flash_attention.launch.kernels import compile_config
from flash_attention.reference.judge import generate_qkvo
from flash_attention_workbench.commands.emulated import EmulatedProblem
from flash_attention_workbench.commands.ladder import run as run_command
from flash_attention_workbench.inspect.instructions import count_instructions
from tests.workbench.commands.invoke import invoke, refuse

pytestmark = pytest.mark.slow  # left out of `make quick`


def test_inspected_rungs_show_what_the_compiler_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rungs = get_ladder()[:2]
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    printed = invoke("ladder", "run", "--arch", "sm_80", "--plot", str(tmp_path / "mix.png"))
    for rung in rungs:
        compiled = compile_config(rung.config, ARCHES["sm_80"])
        row = next(line for line in printed.splitlines() if rung.name in line)
        cells = re.split(r"\s{2,}", row.strip())
        assert cells[1:3] == ["sm_80", str(compiled.resources.registers)]
        assert cells[4] == str(rung.config.smem_bytes() // 1024)
    assert "tensor core" in re.sub(r"\s+", " ", printed)
    for name in ("mix.png", "mix-emulated.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_emulated_rungs_show_error_findings_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rungs = (get_ladder()[0], get_ladder()[15])
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    printed = invoke("ladder", "run", "--arch", "sm_80").partition("Emulated on sm_80")[2]
    stored = generate_qkvo(1, 256, 16, 128, DType.FP16)
    q, k, v, o = (tensor[:, :, :2] for tensor in stored)
    for rung in rungs:
        counters = emulate(rung.config, q, k, v, o).counters
        row = next(line for line in printed.splitlines() if rung.name in line)
        cells = re.split(r"\s{2,}", row.strip())
        assert cells[3:5] == ["none", f"{counters.conflicts:,}"]
        assert cells[7] == f"{counters.instructions.total() / (4 * 8):,.0f}"
    assert "Every output was within tolerance of the float64 oracle" in printed


def test_hopper_rungs_need_sm_90(monkeypatch: pytest.MonkeyPatch) -> None:
    rungs = get_ladder()[1:17]
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    ran: list[tuple[object, ...]] = []
    for name in ("run_inspected", "run_emulated"):
        monkeypatch.setattr(run_command, name, lambda *given, **settings: ran.append(given))
    printed = invoke("ladder", "run", "--arch", "sm_80")
    assert "rung 17 wgmma needs sm_90" in printed
    assert ran == [(list(rungs[:15]), ARCHES["sm_80"])] * 2
    ran.clear()
    printed = invoke("ladder", "run", "--arch", "sm_90", "--causal")
    assert "needs" not in printed
    assert ran == [(list(rungs), ARCHES["sm_90"])] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_every_family_runs_on_its_own_architecture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rungs = (get_ladder()[15], get_ladder()[16])
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    resources, _, emulated = invoke("ladder", "run").partition("Emulated:")
    for rung, arch in zip(rungs, ("sm_80", "sm_90"), strict=True):
        row = next(line for line in resources.splitlines() if rung.name in line)
        assert re.split(r"\s{2,}", row.strip())[1] == arch
        assert rung.name in emulated
    assert "Every output was within tolerance" in emulated


def test_bad_choices_are_refused_with_the_good_ones() -> None:
    assert "choose from seed, quick" in refuse("ladder", "run", "--grid", "huge")
    assert "unknown architecture 'sm_1'" in refuse("ladder", "run", "--arch", "sm_1")
    assert "not a kernel config" in refuse("ladder", "run", "--config", "fastest")
    other = get_ladder(d_head=64)[0].config.short_form()
    assert "choose them with --dtype" in refuse("ladder", "run", "--config", other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_measurements_need_a_gpu(tmp_path: Path) -> None:
    target, config = tmp_path / "r.json", get_ladder()[0].config.short_form()
    assert "need a GPU" in refuse("ladder", "run", "--config", config, "--json", str(target))
    assert not target.exists()


def test_what_compiler_and_emulator_say_is_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rungs = get_ladder()[3:5]
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    invoke("ladder", "run", "--arch", "sm_80", "--json", str(tmp_path / "r.json"))
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["shape"] == [1, 256, 2, 128]
    first, second = record["rows"]
    compiled = compile_config(rungs[0].config, ARCHES["sm_80"])
    assert (first["rung"], first["arch"]) == (4, "sm_80")
    assert first["registers"] == compiled.resources.registers
    assert first["opcodes"] == dict(count_instructions(compiled).opcodes)
    assert (first["same_code"], second["same_code"]) == (False, True)  # a known no-op
    stored = generate_qkvo(1, 256, 16, 128, DType.FP16)
    counters = emulate(rungs[0].config, *(tensor[:, :, :2] for tensor in stored)).counters
    per_block = counters.instructions.total() / (4 * 8)
    assert first["emulated"]["instructions / key block"] == per_block
    assert first["emulated"]["bank conflicts"] == counters.conflicts


@pytest.mark.gpu
def test_measured_rungs_are_written_and_plotted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rungs = get_ladder()[-2:]
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    files = ("--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.png"))
    printed = invoke("ladder", "run", "--repeats", "3", *files)
    assert "within tolerance" in printed
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["contender"] for row in rows] == ["FA2", *(rung.name for rung in rungs)]
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_rungs_of_the_backward_pass_are_inspected_emulated_and_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ladder = get_ladder(pass_=Pass.BACKWARD)
    rungs = (ladder[1], ladder[10])
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    files = ("--json", str(tmp_path / "r.json"))
    printed = invoke("ladder", "run", "--pass", "backward", "--arch", "sm_90", "--causal", *files)
    assert "Every gradient was within tolerance of the float64 oracle" in printed
    record = json.loads((tmp_path / "r.json").read_text())
    assert (record["pass_"], record["shape"]) == ("backward", [1, 256, 2, 128])
    problem = EmulatedProblem(
        rungs[0].config, batch=1, seq_len=256, heads=2, stored_heads=16, causal=True
    )
    for rung, row in zip(rungs, record["rows"], strict=True):
        compiled = compile_config(rung.config, ARCHES["sm_90"], CAUSAL)
        assert (row["rung"], row["registers"]) == (rung.number, compiled.resources.registers)
        kernel = problem.run(rung.config, "sm_90")
        assert kernel.judged in ("dq", "dk", "dv")
        assert row["emulated"]["error"] == kernel.check.error
        blocks = 2 * (2 + 2 + 1 + 1)  # of 64 queries: those that see 128 keys, in two heads
        executed = kernel.counters.instructions.total()
        assert row["emulated"]["instructions / key block"] == executed / blocks


def test_a_ladder_without_a_rung_for_an_architecture_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rungs = get_ladder()[16:18]
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    assert "no rung of this ladder runs on sm_80" in refuse("ladder", "run", "--arch", "sm_80")


def test_an_extra_config_is_of_the_pass() -> None:
    config = get_ladder()[0].config.short_form()
    message = refuse("ladder", "run", "--pass", "backward", "--config", config)
    assert "a config of the forward pass" in message


@pytest.mark.gpu
def test_measured_rungs_of_the_backward_pass_are_written_and_plotted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rungs = get_ladder(pass_=Pass.BACKWARD)[-3:]
    monkeypatch.setattr(run_command, "ladder_of", lambda *options: rungs)
    files = ("--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.png"))
    printed = invoke("ladder", "run", "--pass", "backward", "--repeats", "3", *files)
    assert "Every timed gradient was within tolerance" in printed
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["pass_"] == "backward"
    names = {row["contender"] for row in record["rows"]}
    assert names == {"FA2", *(rung.name for rung in rungs)}
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")

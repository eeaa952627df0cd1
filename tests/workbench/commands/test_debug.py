# SPDX-License-Identifier: Apache-2.0
"""`debug` prints the kernel's numbers beside the reference's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.reference.judge import generate_qkv
from flash_attention_workbench.debug import Inspection
from tests.emulator.edits import Edit, plant
from tests.workbench.commands.invoke import invoke, refuse

pytestmark = pytest.mark.slow  # left out of `make quick`

SMALL = ("--seq", "128", "--heads", "1", "--d-head", "64", "--emulator")


def numbers(line: str) -> list[float]:
    return [float(text) for text in line.split()]


def test_a_row_of_one_key_block() -> None:
    printed = invoke("debug", "--rung", "13", "--key-block", "1", "--row", "70", *SMALL)
    assert "rung 13 backward walk on the emulator, key block 1 as visited" in printed
    assert "keys 64 to 95, query rows 0 to 127" in printed
    q, k, v = generate_qkv(1, 128, 1, 64, DType.FP16)
    config = get_ladder(DType.FP16, 64, 1)[12].config
    inspection = Inspection(config, q, k, v, step=1, row=70)
    (line,) = re.findall(r"^ *66 .*$", printed, re.MULTILINE)
    key, s_kernel, s_wanted, _, p_kernel, p_wanted, _ = numbers(line)
    assert key == 66
    assert s_kernel == pytest.approx(float(inspection.kernel.s[70, 2]), abs=1e-5)
    score = float(q[0, 70, 0].double() @ k[0, 66, 0].double()) / 8
    assert s_wanted == pytest.approx(score, abs=1e-5)
    assert p_kernel == pytest.approx(float(inspection.kernel.p[70, 2]), abs=1e-5)
    assert p_wanted == pytest.approx(float(inspection.reference.p[70, 2]), abs=1e-5)
    (sums,) = re.findall(r"^ *lse +([\d.]+) +([\d.]+) +\S+ *$", printed, re.MULTILINE)
    assert float(sums[0]) == pytest.approx(float(inspection.reference.lse[70]), abs=1e-5)
    assert float(sums[1]) == pytest.approx(float(sums[0]), abs=1e-4)
    assert "known there to 1e-03" in printed
    assert len(re.findall(r"^ rows \d+-\d+", printed, re.MULTILINE)) == 16


def test_a_wrong_output_fails_and_its_columns_stand_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, shifted = "b.output_pair(i, j, h)", "b.output_pair(i, j == 5 ? 4 : j, h)"
    plant([Edit("sm80/store.cuh", right, shifted)], tmp_path, monkeypatch)
    printed = invoke("debug", "--rung", "6", *SMALL, exit_code=1)
    assert "NOT within" in printed
    (line,) = re.findall(r"^ column .*$", printed, re.MULTILINE)
    by_column = numbers(line.replace("column", ""))[:-1]
    assert [4 * j for j, percent in enumerate(by_column) if percent > 100] == [40, 44]


def test_a_hopper_kernel_and_the_last_rows_of_a_length_that_is_no_multiple() -> None:
    small = ("--seq", "136", "--row", "130", "--heads", "1", "--d-head", "64", "--emulator")
    printed = invoke("debug", "--rung", "22", "--dtype", "bf16", *small)
    assert "keys 128 to 135, query rows 128 to 135" in printed
    assert "known there to 8e-03" in printed
    assert printed.count(", within ") == 2
    assert len(re.findall(r"^ rows \d+-\d+", printed, re.MULTILINE)) == 8


def test_bad_choices_are_refused() -> None:
    assert "key block 4 does not exist; there are 4" in refuse("debug", "--key-block", "4", *SMALL)
    assert "row 128 does not exist" in refuse("debug", "--row", "128", *SMALL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_gpu_must_be_there() -> None:
    assert "leave --gpu out to use the emulator" in refuse("debug", "--gpu")


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    printed = invoke("debug", "--rung", "16", "--key-block", "2", "--gpu")
    assert "rung 16 static stride on the GPU" in printed
    assert ", within " in printed

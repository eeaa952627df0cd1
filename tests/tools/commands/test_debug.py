# SPDX-License-Identifier: Apache-2.0
"""`debug` prints the kernel's numbers beside the reference's."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch

from flash_attention.kernel_configs import DType
from flash_attention.ladder import get_ladder
from flash_attention.reference.judge import generate_qkv
from flash_attention.tools import debug as debugging
from flash_attention.tools.commands import debug as debug_command
from tests.tools.commands.invoke import invoke, refuse
from tests.tools.test_debug import broken

SMALL = ("--seq", "128", "--heads", "1", "--d-head", "64", "--emulator")


def numbers(line: str) -> list[float]:
    return [float(text) for text in line.split()]


def test_a_row_of_one_key_block() -> None:
    printed = invoke("debug", "--rung", "13", "--key-block", "1", "--row", "70", *SMALL)
    assert "rung 13 backward walk on the emulator, key block 1 as visited" in printed
    assert "keys 64 to 95, query rows 0 to 127" in printed
    q, k, v = generate_qkv(1, 128, 1, 64, DType.FP16)
    config = get_ladder(DType.FP16, 64, 1)[12].config
    inspection = debugging.Inspection(config, q, k, v, step=1, row=70)
    (line,) = re.findall(r"^ *66 .*$", printed, re.MULTILINE)
    key, s_kernel, s_wanted, _, p_kernel, p_wanted, _ = numbers(line)
    assert key == 66
    assert s_kernel == pytest.approx(float(inspection.kernel.s[70, 2]), abs=1e-5)
    assert s_wanted == pytest.approx(float(q[0, 70, 0].double() @ k[0, 66, 0].double()), abs=1e-5)
    assert p_kernel == pytest.approx(float(inspection.kernel.p[70, 2]), abs=1e-5)
    assert p_wanted == pytest.approx(float(inspection.reference.p[70, 2]), abs=1e-5)
    (sums,) = re.findall(r"^ *l +([\d.]+) +([\d.]+) +\S+ *$", printed, re.MULTILINE)
    assert float(sums[0]) == pytest.approx(float(sums[1]), abs=1e-3)
    assert len(re.findall(r"^ rows \d+-\d+", printed, re.MULTILINE)) == 16


def test_a_wrong_output_fails_and_its_columns_stand_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, shifted = "b.output_pair(i, j, h)", "b.output_pair(i, j == 5 ? 4 : j, h)"
    include = broken(tmp_path, "sm80/store/direct.cuh", right, shifted)
    inspection = partial(debugging.Inspection, include_dir=include)
    monkeypatch.setattr(debug_command, "Inspection", inspection)
    printed = invoke("debug", "--rung", "6", *SMALL, exit_code=1)
    assert "NOT within" in printed
    (line,) = re.findall(r"^ column .*$", printed, re.MULTILINE)
    by_column = numbers(line.replace("column", ""))[:-1]
    assert [4 * j for j, percent in enumerate(by_column) if percent > 100] == [40, 44]


def test_bad_choices_are_refused() -> None:
    assert "key block 4 does not exist; there are 4" in refuse("debug", "--key-block", "4", *SMALL)
    assert "row 128 does not exist" in refuse("debug", "--row", "128", *SMALL)
    assert "cannot be looked into" in refuse("debug", "--rung", "17", *SMALL)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_gpu_must_be_there() -> None:
    assert "leave --gpu out to use the emulator" in refuse("debug", "--gpu")


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    printed = invoke("debug", "--rung", "16", "--key-block", "2", "--gpu")
    assert "rung 16 static stride on the GPU" in printed
    assert ", within " in printed

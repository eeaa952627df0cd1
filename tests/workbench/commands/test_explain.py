# SPDX-License-Identifier: Apache-2.0
"""`explain` prints what `flash_attention.explain` returns for the shape of its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from flash_attention_workbench.explain import explain
from tests.workbench.commands.invoke import invoke, refuse

SMALL = ("--shape", "1,128,2,1,64")
ARCH = ("--arch", "sm_90")


def test_the_table_tells_all_that_the_report_does() -> None:
    q, k = (torch.empty(1, 128, n, 64, dtype=torch.bfloat16, device="meta") for n in (2, 1))
    explanation = explain(q, k, k, causal=True, arch="sm_90")
    printed = " ".join(invoke("explain", *SMALL, "--causal", *ARCH).split())
    for name, line in explanation.rows():
        assert name in printed
        if name not in ("launch", "not chosen"):  # long names are broken
            assert line in printed


@pytest.mark.usefixtures("no_compile")
def test_a_call_in_forward_mode_is_an_option() -> None:
    printed = invoke("explain", *SMALL, "--seq-q", "0", "--tangents", *ARCH)
    assert "hopper_tangent(BF16, 64, 2, 96, 2): lazy_8+dynamic_32" in printed


@pytest.mark.usefixtures("no_compile")
def test_options_change_parts_of_the_shape(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "report.json"
    printed = invoke(
        *("explain", *SMALL, "--batch", "3", "--seq-q", "0", "--heads", "6", "--d", "40"),
        *("--d-v", "32", "--dtype", "fp16", "--window", "5,-1", "--softcap", "2", *ARCH),
        *("--json", str(file)),
    )
    assert "there is nothing to compute" in printed
    problem = json.loads(file.read_text())["problem"]
    wanted = {"batch": 3, "seq_q": 0, "seq_k": 0, "heads": 6, "heads_k": 6, "d_head": 40, "d_v": 32}
    assert {name: problem[name] for name in wanted} == wanted
    assert (problem["dtype"], problem["softcap"]) == ("torch.float16", 2.0)


def test_json_on_standard_output_comes_alone() -> None:
    sizes = ("--seq-q", "1", "--seq-k", "4096", "--num-sms", "100")
    report = json.loads(invoke("explain", *SMALL, *sizes, *ARCH, "--json", "-"))
    assert (report["num_sms"], report["gpu"]) == (100, None)
    assert (report["num_splits"], report["tiles"]) == (8, 1)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shape", "1,2,3"), "--shape is '1,2,3'; pass whole numbers from 0 on, batch,seq,heads"),
        (("--shape", "1,-8,2,2,64"), "--shape is '1,-8,2,2,64'; pass whole numbers from 0 on"),
        (("--shape", "1,8,2,2," + "9" * 30), "elements, which no GPU holds; pass smaller ones"),
        (("--heads", "9" * 30), "elements, which no GPU holds; pass smaller ones"),
        (("--window", "5"), "--window is '5'; pass whole numbers from -1 on, left,right"),
        (("--arch", "sm_1"), "unknown architecture 'sm_1'"),
        (("--dtype", "fp8"), "dtype 'fp8' is not supported"),
        (("--d", "520"), "q has d_head 520; the kernels take at most 512"),
        (("--config", "fastest"), "not a kernel config"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_bad_options_are_refused(options: tuple[str, ...], message: str) -> None:
    assert message in refuse("explain", *SMALL, *options)


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    taken = ("explain", *SMALL, "--seq-q", "0", *ARCH, "--json", str(tmp_path))
    assert "Is a directory; choose another place" in refuse(*taken)


def test_tensors_of_8_bits_have_kernels_of_their_own() -> None:
    printed = " ".join(invoke("explain", *SMALL, "--dtype", "e4m3", *ARCH).split())
    words = "q_buffers_2+q_in_registers+tensor_sums+linear_1+persistent"
    assert f"hopper_fp8(BF16, 64, 2, 128, 4): {words}" in printed
    assert "transpose_d64_tensor_sums" in printed

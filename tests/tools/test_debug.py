# SPDX-License-Identifier: Apache-2.0
"""The kernel's own S, m, l, P and O beside the reference, and what a broken kernel shows."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compile import INCLUDE_DIR
from flash_attention.compile.unit import translation_unit
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    parse_kernel_config,
)
from flash_attention.ladder import get_ladder
from flash_attention.reference.judge import generate_qkv, oracle
from flash_attention.tools.debug import UNNORMALISED, Inspection, State, bind, reference_state

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
SEQ = 128
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def inspect(config: KernelConfig, step: int, *, device: str = "cpu", row: int = 0) -> Inspection:
    tensors = generate_qkv(1, SEQ, 2, config.d_head, config.dtype, seed=4)
    q, k, v = (tensor.to(device) for tensor in tensors)
    return Inspection(config, q, k, v, step=step, row=row, head=1)


def apart(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().nan_to_num(nan=torch.inf).max())


def assert_close(kernel: State, reference: State, dtype: DType) -> None:
    """fp32 arithmetic for S, m and l; 16 bits for P and O."""
    step = torch.finfo(dtype.to_torch_dtype()).eps
    assert apart(kernel.s, reference.s) < 1e-4
    assert apart(kernel.m, reference.m) < 1e-5
    assert apart(kernel.l, reference.l) < 1e-3
    assert apart(kernel.p, reference.p) < step
    assert apart(kernel.o, reference.o) < 2 * step


def test_the_reference_ends_at_attention() -> None:
    q, k, v = generate_qkv(1, SEQ, 1, 64, DType.FP16)
    blocks = list(zip(k[0, :, 0].split(32), v[0, :, 0].split(32), strict=True))
    whole = oracle(q, k, v)[0, :, 0]
    for order in (blocks, blocks[::-1]):
        state = reference_state(q[0, :, 0], order, 64**-0.5)
        torch.testing.assert_close(state.o, whole, rtol=1e-12, atol=1e-12)
        scores = q[0, :, 0].double() @ k[0, :, 0].double().T / 8
        torch.testing.assert_close(state.m + state.l.log(), scores.logsumexp(dim=1))
    torch.testing.assert_close(state.s, scores[:, :32] * 8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("number", "dtype", "step"),
    [(1, DType.BF16, 2), (6, DType.FP16, 0), (13, DType.FP16, 1), (16, DType.BF16, 3)],
)
def test_a_right_kernel_agrees_in_everything(
    number: int, dtype: DType, step: int, device: str
) -> None:
    config = get_ladder(dtype, 64, 2)[number - 1].config
    inspection = inspect(config, step, device=device)
    assert_close(inspection.kernel, inspection.reference, dtype)
    assert inspection.findings == ()


def test_blocks_wider_than_the_head_and_later_rows() -> None:
    config = parse_kernel_config("(FP16, 64, 64, 128, 4): async+eager+swizzled+load_2_2_2_tiles")
    inspection = inspect(config, 0, row=100)
    assert inspection.first_row == 64
    assert inspection.kernel.s.shape == (64, 128)
    assert_close(inspection.kernel, inspection.reference, DType.FP16)


def test_the_walk_backwards_starts_at_the_last_block() -> None:
    assert inspect(replace(CONFIG, reverse_kv=True), 1).key_block == SEQ // 32 - 2
    assert inspect(CONFIG, 1).key_block == 1


def broken(folder: Path, header: str, old: str, new: str) -> Path:
    include = folder / "include"
    shutil.copytree(INCLUDE_DIR, include)
    path = include / "fa" / header
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return include


@pytest.mark.parametrize(
    ("header", "old", "new", "wrong"),
    [
        ("attn/softmax.cuh", "rescale_row(o, i, h, shrink);", "", {"o"}),
        ("attn/softmax.cuh", "stats.sum[i][h] * shrink", "stats.sum[i][h]", {"l", "o"}),
        ("sm80/forward.cuh", "k_lane_.at(16 * n, 2 * d)", "k_lane_.at(0, 2 * d)", set("smlpo")),
        ("sm80/forward.cuh", "v_lane_.at(16 * n, 2 * d)", "v_lane_.at(0, 2 * d)", set("spo")),
    ],
)
def test_a_broken_kernel_is_wrong_where_it_breaks(
    tmp_path: Path, header: str, old: str, new: str, wrong: set[str]
) -> None:
    include = broken(tmp_path, header, old, new)
    q, k, v = generate_qkv(1, SEQ, 1, 64, DType.FP16)
    inspection = Inspection(CONFIG, q, k, v, step=2, include_dir=include)
    kernel, reference = inspection.kernel, inspection.reference
    found = {n for n in "smlpo" if apart(getattr(kernel, n), getattr(reference, n)) > 0.01}
    assert found == wrong


def test_findings_are_kept(tmp_path: Path) -> None:
    include = broken(tmp_path, "sm80/schedule/eager.cuh", "b.template wait<0>();", "")
    q, k, v = generate_qkv(1, SEQ, 1, 64, DType.FP16)
    inspection = Inspection(CONFIG, q, k, v, step=1, include_dir=include)
    assert not inspection.kernel.o.isfinite().all()
    assert "race" in {finding.kind for finding in inspection.findings}


def test_bind_replaces_one_slot_and_includes_its_header() -> None:
    source = translation_unit(CONFIG)
    bound = bind(source, UNNORMALISED)
    assert "using Normalise = fa::probe::Unnormalised;" in bound
    assert "#include <fa/probe/unnormalised.cuh>\n" in bound
    changed = set(bound.splitlines()) ^ set(source.splitlines())
    assert len(changed) == 3
    with pytest.raises(UnsupportedError, match="binds no slot Normalise"):
        bind("struct Config {};", UNNORMALISED)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"step": 4}, "key block 4 does not exist; there are 4"),
        ({"step": 0, "row": 128}, "row 128 does not exist; there are 128"),
        ({"step": 0, "head": 2}, "head 2 does not exist; there are 2"),
        ({"step": 0, "batch": -1}, "batch -1 does not exist; there are 1"),
    ],
)
def test_what_is_not_there_is_refused(choice: dict[str, Any], message: str) -> None:
    q, k, v = generate_qkv(1, SEQ, 2, 64, DType.FP16)
    with pytest.raises(UnsupportedError, match=message):
        Inspection(CONFIG, q, k, v, **choice)


@pytest.mark.usefixtures("no_compile")
def test_a_family_without_probes_is_refused() -> None:
    q, k, v = generate_qkv(1, SEQ, 2, 64, DType.FP16)
    config = HopperForwardKernelConfig(DType.FP16, 64, 2, 128, 1)
    with pytest.raises(UnsupportedError, match=r"hopper\(FP16.* cannot be looked into.* emulate"):
        Inspection(config, q, k, v, step=0)

# SPDX-License-Identifier: Apache-2.0
"""The kernel's own S, lse, P and O beside the reference, and what a broken kernel shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    KernelConfig,
    parse_kernel_config,
)
from flash_attention.ladder import get_ladder
from flash_attention.reference.judge import generate_qkv
from flash_attention.reference.oracle import oracle, oracle_lse
from flash_attention_workbench.debug import Inspection
from tests.devices import on_devices
from tests.emulator.edits import Edit, plant
from tests.gate import EXHAUSTIVE

pytestmark = pytest.mark.slow  # left out of `make quick`

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
OVERLAP = get_ladder(DType.FP16, 64, 2)[21].config
SEQ = 128


def inspect(
    config: KernelConfig, step: int, *, seq: int = SEQ, device: str = "cpu", row: int = 0
) -> Inspection:
    tensors = generate_qkv(1, seq, 2, config.d_head, config.dtype, seed=4)
    q, k, v = (tensor.to(device) for tensor in tensors)
    return Inspection(config, q, k, v, step=step, row=row, head=1)


def assert_close(inspection: Inspection) -> None:
    """fp32 arithmetic for lse, 16 bits for P and O; S is known as well as P."""
    kernel, reference = inspection.kernel, inspection.reference
    step = torch.finfo(inspection.q.dtype).eps
    assert ((kernel.s - reference.s).abs() <= inspection.s_precision + 1e-5).all()
    for mine, wanted, allowed in (
        (kernel.lse, reference.lse, 1e-5),
        (kernel.p, reference.p, step / 4),
        (kernel.o, reference.o, 2 * step),
    ):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=allowed)


@pytest.mark.parametrize(("config", "step"), [(CONFIG, 3), (replace(CONFIG, reverse_kv=True), 3)])
def test_after_all_blocks_the_reference_is_attention(config: KernelConfig, step: int) -> None:
    q, k, v = generate_qkv(1, SEQ, 1, 64, DType.FP16)
    state = Inspection(config, q, k, v, step=step).reference
    torch.testing.assert_close(state.o, oracle(q, k, v)[0, :64, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.lse, oracle_lse(q, k)[0, 0, :64])
    torch.testing.assert_close(state.p, (state.s - state.lse[:, None]).exp())


@pytest.mark.parametrize(
    ("number", "dtype", "step", "device"),
    on_devices(
        [
            pytest.param(1, DType.BF16, 2, id="1", marks=EXHAUSTIVE),
            (6, DType.FP16, 0),
            pytest.param(13, DType.FP16, 1, id="13", marks=EXHAUSTIVE),
            (16, DType.BF16, 3),
            pytest.param(22, DType.FP16, 1, id="22", marks=EXHAUSTIVE),
            (29, DType.BF16, 1),
        ],
        mark=pytest.mark.gpu,
    ),
)
def test_a_right_kernel_agrees_in_everything(
    number: int, dtype: DType, step: int, device: str
) -> None:
    config = get_ladder(dtype, 64, 2)[number - 1].config
    inspection = inspect(config, step, seq=max(SEQ, 2 * config.B_c), device=device)
    assert_close(inspection)
    assert inspection.findings == ()


def test_blocks_wider_than_the_head_and_later_rows() -> None:
    config = parse_kernel_config("(FP16, 64, 64, 128, 4): async+eager+swizzled+load_2_2_2_tiles")
    inspection = inspect(config, 0, row=100)
    assert inspection.rows == range(64, 128)
    assert inspection.kernel.s.shape == (64, 128)
    assert_close(inspection)


@pytest.mark.parametrize("config", [CONFIG, OVERLAP], ids=["sm_80", "sm_90"])
def test_blocks_that_the_tensors_cut(config: KernelConfig) -> None:
    inspection = inspect(config, 0, seq=config.B_c + 8, row=config.B_c + 4)
    descending = config.visits_descending
    assert len(inspection.keys) == (8 if descending else config.B_c)
    assert inspection.rows.stop == config.B_c + 8
    assert_close(inspection)


def test_the_walk_backwards_starts_at_the_last_block() -> None:
    assert inspect(CONFIG, 1).keys == range(32, 64)
    assert inspect(replace(CONFIG, reverse_kv=True), 1).keys == range(SEQ - 64, SEQ - 32)
    assert inspect(OVERLAP, 0, seq=300).keys == range(256, 300)
    assert inspect(OVERLAP, 2, seq=300).keys == range(128)


SUMS = {"lse", "p", "o"}  # S is what P was before it was divided by the sum
MISTAKES = [
    (CONFIG, Edit("attn/softmax.cuh", "rescale_row(o, i, h, shrink);"), {"o"}),
    (CONFIG, Edit("attn/softmax.cuh", "stats.sum[i][h] *= shrink;"), SUMS),
    (
        CONFIG,
        Edit("sm80/forward.cuh", "k_lane_.at(16 * n, 2 * d)", "k_lane_.at(0, 2 * d)"),
        {"s", "lse", "p", "o"},
    ),
    (
        CONFIG,
        Edit("sm80/forward.cuh", "v_lane_.at(16 * n, 2 * d)", "v_lane_.at(0, 2 * d)"),
        {"s", "p", "o"},
    ),
    (
        OVERLAP,
        Edit(
            "sm90/consumer.cuh",
            "if (!kSame<Block, attn::FirstMasked> && stats_.grew) attn::rescale_rows(o, stats_);",
        ),
        {"o"},
    ),
    (OVERLAP, Edit("attn/rescale.cuh", "stats.sum[0][h] *= stats.shrink[0][h];"), SUMS),
    (
        OVERLAP,
        Edit("sm90/products.cuh", "k.step(d)", "k.step(0)"),
        {"s", "lse", "p", "o"},
    ),
    (OVERLAP, Edit("sm90/products.cuh", "v.step(n)", "v.step(0)"), {"s", "p", "o"}),
]


@pytest.mark.parametrize(("config", "edit", "wrong"), MISTAKES)
def test_a_broken_kernel_is_wrong_where_it_breaks(
    config: KernelConfig,
    edit: Edit,
    wrong: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant([edit], tmp_path, monkeypatch)
    inspection = inspect(config, 1, seq=2 * config.B_c)
    kernel, reference = vars(inspection.kernel), vars(inspection.reference)
    apart = {name: (kernel[name] - reference[name]).abs() for name in kernel}
    apart["s"] = torch.where(kernel["p"] == 0, 0, apart["s"])
    assert {name for name, far in apart.items() if far.max() > 0.01} == wrong


def test_findings_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant([Edit("sm80/schedule/eager.cuh", "b.template wait<0>();")], tmp_path, monkeypatch)
    inspection = inspect(CONFIG, 1)
    assert not inspection.kernel.o.isfinite().all()
    assert "race" in {finding.kind for finding in inspection.findings}


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

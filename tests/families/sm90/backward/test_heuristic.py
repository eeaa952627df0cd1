# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.arch import MEASURED_ARCH, get_arch
from flash_attention.call.backward_call import BackwardProblem, Wanted
from flash_attention.families.sm90.backward.heuristic import heuristic
from tests.families.sm90.backward.cases import config

PROBLEM = BackwardProblem(
    batch=2,
    seq_q=512,
    seq_k=512,
    heads=4,
    heads_k=2,
    d_head=128,
    d_v=128,
    dtype=torch.bfloat16,
    softmax_scale=0.1,
)
NO_DQ = Wanted(dq=False)
LONG = {"seq_k": 4096}
PACKED = {"total_q": 7200, "total_k": 7200}
MANY_PACKED = {**PACKED, "batch": 40, "heads": 16}
MANY_PACKED_96 = {**MANY_PACKED, "heads_k": 16, "d_head": 96, "d_v": 96}
MANY_PACKED_64 = {**MANY_PACKED, "heads_k": 16, "d_head": 64, "d_v": 64}
ADDED_32 = {"order": "dynamic_32"}
ADDED_96 = {"d_head": 96, "stages": 3, "order": "dynamic_8", "k": "registers"}
OTHER = {"order": "dynamic_8"}
SHORT_96 = {"d_head": 96, "d_v": 96, "seq_k": 3072, "causal": True}
LONG_PACKED_96 = {**SHORT_96, "total_q": 9000, "total_k": 9000}
MANY_96 = {**ADDED_96, "order": "dynamic_32"}
SLANTED_96 = {**MANY_96, "k": "shared"}
ADDED_64 = {"d_head": 64, "derivative": "pairs", "schedule": "paired", "order": "dynamic_16"}
ORDERED = {"dq": "ordered", "schedule": "paired", "order": "dynamic_16"}
ORDERED_32 = {**ORDERED, "order": "dynamic_32"}
ORDERED_96 = {**ORDERED, "d_head": 96, "order": "dynamic_64"}
OWN_HEADS = {"heads_k": 4}  # every head of q has one of k
ORDERED_64 = {**ADDED_64, "dq": "ordered", "order": "dynamic_64"}
SPLIT = {"d_head": 256, "dq": "workspace", "derivative": "exact", "schedule": "split"}
CAPPED = {**LONG, "causal": True, "softcap": 5.0}


def problem(d_head: int) -> BackwardProblem:
    """A causal problem with many keys."""
    return replace(PROBLEM, d_head=d_head, d_v=d_head, causal=True, seq_q=4096, seq_k=4096)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, OTHER),
        ({**OWN_HEADS, "batch": 16}, OTHER),  # too few tiles hide the turns
        ({**OWN_HEADS, "batch": 17}, ORDERED_32),
        ({**OWN_HEADS, "batch": 32, "seq_k": 1024}, OTHER),
        ({**OWN_HEADS, "batch": 33, "seq_k": 1024}, ORDERED_32),
        ({**OWN_HEADS, "seq_k": 128}, ORDERED_32),  # one turn
        ({**OWN_HEADS, "seq_k": 129}, OTHER),
        ({**OWN_HEADS, "seq_k": 1024, "causal": True}, ORDERED_32),
        ({**OWN_HEADS, "seq_k": 1025, "causal": True}, OTHER),
        ({"seq_k": 256}, ORDERED),  # grouped heads
        ({"seq_k": 257}, OTHER),
        ({"causal": True}, ORDERED),
        ({"seq_k": 513, "causal": True}, OTHER),
        ({**OWN_HEADS, **SHORT_96}, ADDED_96),  # short tiles come last
        ({**OWN_HEADS, **SHORT_96, "causal": False, "window": (5, 5)}, MANY_96),
        ({**OWN_HEADS, **SHORT_96, "causal": False}, ADDED_96),
        ({**OWN_HEADS, **LONG_PACKED_96}, SLANTED_96),
        ({**OWN_HEADS, **LONG_PACKED_96, "causal": False}, {**MANY_96, "stages": 2}),
        ({"seq_k": 8191}, OTHER),
        ({"seq_k": 8192}, OTHER),
        ({**PACKED, "seq_k": 800, "causal": True}, ADDED_32),
        ({**PACKED, "seq_k": 200, "batch": 40, "causal": True}, ORDERED),
        ({**PACKED, **OWN_HEADS, "seq_k": 800}, ADDED_32),
        ({**PACKED, **OWN_HEADS, "seq_k": 800, "causal": True}, ORDERED_32),
        ({**MANY_PACKED, "heads_k": 8}, OTHER),
        ({**MANY_PACKED, "heads_k": 8, "seq_k": 200}, ORDERED),
        ({**MANY_PACKED, "heads_k": 16, "batch": 10, "seq_k": 1024}, OTHER),
        ({**MANY_PACKED, "heads_k": 16, "seq_k": 500}, ORDERED_32),
        ({**MANY_PACKED, "heads_k": 16, "causal": True, "seq_k": 2000}, ADDED_32),
        ({**MANY_PACKED, "heads_k": 16, "causal": True, "seq_k": 4000}, OTHER),
        (
            {**MANY_PACKED, "heads_k": 16, "d_head": 64, "d_v": 64, "seq_k": 800, "causal": True},
            {**ADDED_64, "tile": "64, 128"},
        ),
        ({**MANY_PACKED_96, "seq_k": 800, "causal": True}, {**ORDERED_96, "stages": 2}),
        ({**MANY_PACKED_96, "seq_k": 2000}, {**ADDED_96, "stages": 2}),
        ({**MANY_PACKED_96, "seq_k": 2000, "causal": True}, SLANTED_96),
        ({**MANY_PACKED_64, "seq_q": 512, "seq_k": 512}, {**ADDED_64, "tile": "64, 128"}),
        ({**MANY_PACKED_64, "seq_q": 513, "seq_k": 513}, ADDED_64),
        (
            {**MANY_PACKED_64, "seq_q": 1024, "seq_k": 1024, "causal": True},
            {**ADDED_64, "tile": "64, 128"},
        ),
        ({**MANY_PACKED_64, "seq_q": 1025, "seq_k": 1025, "causal": True}, ADDED_64),
        (
            {**OWN_HEADS, "d_head": 64, "d_v": 64, "seq_q": 128, "seq_k": 128},
            {**ORDERED_64, "tile": "64, 128"},
        ),
        (
            {"d_head": 32, "d_v": 32, "seq_q": 128, "seq_k": 128},
            {**ORDERED_64, "d_head": 32, "order": "dynamic_128", "tile": "64, 128"},
        ),
        (LONG, OTHER),
        ({**LONG, "causal": True}, OTHER),
        ({**OWN_HEADS, "seq_k": 4097, "causal": True}, {"order": "dynamic_4"}),
        ({**OWN_HEADS, "seq_k": 4097}, OTHER),
        ({"seq_k": 4097, "causal": True}, OTHER),
        ({**LONG, "window": (5, 5)}, OTHER),
        ({**LONG, "dropout_p": 0.1}, {**OTHER, "schedule": "paired"}),
        ({**OWN_HEADS, "window": (5, 5)}, ORDERED_32),
        ({**OWN_HEADS, "batch": 12, "d_head": 64, "d_v": 40}, {**ADDED_64, "order": "dynamic_8"}),
        ({**OWN_HEADS, "batch": 13, "d_head": 64, "d_v": 40}, ORDERED_64),
        (
            {**OWN_HEADS, "batch": 13, "d_head": 64, "d_v": 40, "dtype": torch.float16},
            {**ORDERED_64, "dtype": "FP16", "derivative": "rounded"},
        ),
        ({**LONG, "d_head": 64, "d_v": 64}, {**ADDED_64, "order": "dynamic_8"}),
        ({**LONG, "d_head": 64, "d_v": 64, "causal": True}, {**ADDED_64, "order": "dynamic_8"}),
        ({**LONG, "d_head": 72, "causal": True}, OTHER),
        ({**LONG, "d_head": 72, "d_v": 80, "causal": True}, ADDED_96),
        (
            {"d_head": 32, "d_v": 24},
            {**ADDED_64, "d_head": 32, "order": "dynamic_8", "k": "registers"},
        ),
        ({**LONG, "deterministic": True, "causal": True}, ORDERED),
        ({"d_head": 64, "d_v": 64, "deterministic": True, "causal": True}, ORDERED_64),
        (
            {"wanted": NO_DQ, "causal": True},
            {**OTHER, "dq": "none", "ds": 0, "derivative": "exact"},
        ),
        ({"d_v": 136, "causal": True}, {**SPLIT, "d_head": 160}),
        ({"d_v": 168, "causal": True}, {**SPLIT, "d_head": 192}),
        ({"d_head": 256}, SPLIT),
        ({"d_head": 256, "causal": True, "wanted": NO_DQ}, {**SPLIT, "dq": "none"}),
        (
            {**CAPPED, "d_head": 64, "d_v": 64},
            {**ADDED_64, "tile": "64, 128", "order": "dynamic_8"},
        ),
        (
            {**CAPPED, "d_head": 64, "d_v": 64, "deterministic": True},
            {**ORDERED_64, "tile": "64, 128"},
        ),
        (CAPPED, {**OTHER, "dq": "workspace"}),
        ({**CAPPED, "wanted": NO_DQ}, {**OTHER, "dq": "none", "ds": 0}),
        ({**CAPPED, "d_head": 256}, {**SPLIT, "derivative": "rounded"}),
        ({**CAPPED, "d_head": 256, "dropout_p": 0.1}, {**SPLIT, "derivative": "rounded"}),
        ({**CAPPED, "dropout_p": 0.1}, {**OTHER, "dq": "workspace"}),
    ],
)
def test_choices(change: dict[str, Any], words: dict[str, Any]) -> None:
    assert heuristic(replace(PROBLEM, **change), MEASURED_ARCH) == config(**words)


@pytest.mark.parametrize(
    ("d_head", "seq", "causal", "heads"),
    [
        (64, 0, False, 64),
        (64, 512, False, 64),
        (64, 512, True, 64),
        (64, 4096, False, 8),
        (64, 16384, False, 4),
        (64, 16384, True, 32),
        (128, 512, False, 16),
        (128, 4096, False, 2),
        (128, 4096, True, 16),
    ],
)
def test_heads_whose_tiles_take_turns_side_by_side(
    d_head: int, seq: int, causal: bool, heads: int
) -> None:
    asked = replace(
        PROBLEM, d_head=d_head, d_v=d_head, seq_q=seq, seq_k=seq, causal=causal, deterministic=True
    )
    kernel = heuristic(asked, MEASURED_ARCH)
    assert not isinstance(kernel, str)
    assert kernel.group_heads == heads


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"d_head": 264}, "Hopper backward kernels have head dimensions up to 256"),
        (
            {"wanted": Wanted(dq=False, dk=False, dv=False, dsinks=True)},
            "Hopper backward kernels compute dq, dk or dv, and none of them is wanted",
        ),
    ],
)
def test_refusals(change: dict[str, Any], why: str) -> None:
    assert heuristic(replace(PROBLEM, **change), MEASURED_ARCH) == why


def test_other_architectures_have_other_kernels() -> None:
    why = heuristic(PROBLEM, get_arch("sm_80"))
    assert why == "Hopper kernels need sm_90 (H100, H200)"

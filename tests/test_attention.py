# SPDX-License-Identifier: Apache-2.0
"""attention: which way a call takes, also in a CUDA graph."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import flash_attention
from flash_attention import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfigError,
    TileOrder,
    UnsupportedError,
    attention,
    forward,
)
from flash_attention.reference.judge import generate_qkv
from tests.feature_cases import Case

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
HOPPER = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 2, tma=True, specialised=True)
DYNAMIC = replace(HOPPER, tile_order=TileOrder.DYNAMIC)


@pytest.mark.usefixtures("no_compile")
def test_on_the_cpu_torch_computes() -> None:
    made = Case("", 100, 130, causal=True).make(dtype=torch.float32)
    out = attention(made.q, made.k, made.v, **made.arguments)
    assert out.dtype == torch.float32


def test_with_a_config_the_kernel_is_emulated() -> None:
    made = Case("", 100, 130, causal=True).make()
    out, lse = attention(made.q, made.k, made.v, config=HOPPER, return_lse=True, **made.arguments)
    assert torch.equal(out, forward(HOPPER, made.q, made.k, made.v, **made.arguments))
    made.assert_right(out, lse)


@pytest.mark.usefixtures("no_compile")
def test_a_config_that_does_not_fit_is_refused() -> None:
    made = Case("", 100, 130, causal=True).make()
    with pytest.raises(UnsupportedError, match=r"config is for torch.float16"):
        attention(made.q, made.k, made.v, config=CONFIG)
    half = [t.half() for t in (made.q, made.k, made.v)]
    with pytest.raises(UnsupportedError, match=r"split_keys is given, .* visit all keys of a row"):
        attention(*half, config=CONFIG, split_keys=64)
    with pytest.raises(KernelConfigError, match="'hopper' is not a kernel config; the form is"):
        attention(*half, config="hopper")
    other: Any = 16
    with pytest.raises(KernelConfigError, match="pass a FlashForwardKernelConfig"):
        attention(*half, config=other)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("order", [TileOrder.PERSISTENT])
@pytest.mark.parametrize(
    "case",
    [
        Case("packed", (10, 20), (15, 25)),
        Case("packed queries", (10, 20), 25, batch=2),
        Case("packed keys", 40, (15, 25), batch=2),
        Case("keys in use", 40, 25, batch=2, used=(7, 25)),
    ],
    ids=lambda case: case.name,
)
def test_lengths_of_their_own_need_a_config_that_hands_out_its_tiles(
    case: Case, order: TileOrder
) -> None:
    made = case.make()
    message = f"config has tile_order=TileOrder.{order.name}: pass one with TileOrder.DYNAMIC"
    config = replace(HOPPER, tile_order=order)
    for function in (partial(attention, config=config), partial(forward, config)):
        with pytest.raises(UnsupportedError, match=message):
            function(made.q, made.k, made.v, **made.arguments)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tile_order": TileOrder.DYNAMIC}, "tile_order"),
        ({"tile_order": TileOrder.PERSISTENT}, "tile_order"),
        ({"own_output": True}, "own_output"),
    ],
    ids=str,
)
@pytest.mark.parametrize("used", [None, (7, 250)])
def test_split_keys_need_a_config_without_idle_fields(
    used: tuple[int, ...] | None, change: dict[str, Any], field: str
) -> None:
    made = Case("", 1, 256, batch=2, used=used).make()
    config = replace(HOPPER, **change)
    message = f"split_keys is given, and {field} of the config would change nothing"
    with pytest.raises(UnsupportedError, match=message):
        attention(made.q, made.k, made.v, config=config, split_keys=64, **made.arguments)


@pytest.mark.usefixtures("no_compile")
def test_other_things_than_tensors_and_other_devices_are_refused() -> None:
    q, k, v = generate_qkv(1, 8, 2, 64, DType.FP16)
    nothing: Any = None
    with pytest.raises(UnsupportedError, match="q is a NoneType"):
        attention(nothing, k, v)
    with pytest.raises(UnsupportedError, match="q is on meta; a CUDA tensor is needed"):
        attention(q.to("meta"), k, v)
    with pytest.raises(UnsupportedError, match="k has device meta, q has device cpu"):
        attention(q, k.to("meta"), v)


@pytest.mark.usefixtures("no_compile")
def test_validation_reads_the_lengths_before_anything_is_compiled() -> None:
    made = Case("", (10, 20), (15, 25)).make()
    wrong = made.arguments | {"max_seqlen_q": 15}
    with pytest.raises(UnsupportedError, match="sequence 1 of q has 20 rows"):
        attention(made.q, made.k, made.v, config=DYNAMIC, validate=True, **wrong)


def test_the_package_offers_it() -> None:
    assert "attention" in flash_attention.__all__


@pytest.mark.gpu("sm_90")
def test_a_captured_call_follows_lengths_that_change() -> None:
    case = Case("", (700, 300, 1), 1024, batch=3, used=(1000, 300, 5), causal=True)
    made = case.make("cuda")
    out = torch.empty_like(made.q)
    attention(made.q, made.k, made.v, out=out, **made.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention(made.q, made.k, made.v, out=out, **made.arguments)
    other = Case("", (200, 600, 201), 1024, batch=3, used=(256, 999, 201), causal=True)
    changed = other.make("cuda", seed=1)
    for old, new in zip((made.q, made.k, made.v), (changed.q, changed.k, changed.v), strict=True):
        old.copy_(new)
    for name in ("cu_seqlens_q", "seqused_k"):
        made.keywords[name].copy_(changed.keywords[name])
    graph.replay()
    changed.assert_right(out)

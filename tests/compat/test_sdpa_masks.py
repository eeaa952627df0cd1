# SPDX-License-Identifier: Apache-2.0
"""Mask tensors of torch's scaled_dot_product_attention, against torch's own results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flash_attention.compat.mask_tensors import mask_options
from flash_attention.compat.sdpa import route_sdpa, scaled_dot_product_attention
from flash_attention.errors import UnsupportedError
from flash_attention.launch.emulate import emulate
from tests.compat.test_sdpa import close, tensors
from tests.devices import HOPPER_DEVICES

of_torch: Any = F.scaled_dot_product_attention
SEQ_Q, SEQ_K, HEADS = 5, 8, 4
SHAPES = [
    (SEQ_Q, SEQ_K),
    (1, SEQ_K),
    (SEQ_Q, 1),
    (HEADS, SEQ_Q, SEQ_K),
    (1, SEQ_Q, SEQ_K),
    (2, 1, 1, SEQ_K),
    (2, 1, SEQ_Q, SEQ_K),
    (1, HEADS, 1, 1),
    (2, HEADS, SEQ_Q, SEQ_K),
]


def masks(*shape: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(shape, generator=generator) < 0.6
    bias = torch.randn(shape, generator=generator)
    return {
        "bool": seen,
        "float": bias,
        "float with -inf": bias.masked_fill(~seen, -math.inf),
        "float with large numbers": bias.masked_fill(~seen, torch.finfo(torch.float32).min),
    }


@pytest.mark.parametrize("kind", masks(1, 1))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_of_every_shape_and_their_gradients(shape: tuple[int, ...], kind: str) -> None:
    mask = masks(*shape)[kind]
    leaves = [t.requires_grad_() for t in tensors(SEQ_Q, SEQ_K, heads=HEADS)]
    options: dict[str, Any] = {"scale": 0.7, "enable_gqa": True}
    wanted = of_torch(*leaves, mask, **options)
    with route_sdpa(strict=True) as routed:
        given = of_torch(*leaves, attn_mask=mask, **options)
    assert routed.here == 1
    close(given, wanted)
    weights = torch.linspace(-1, 1, wanted.numel()).view(wanted.shape)
    for mine, theirs in zip(
        torch.autograd.grad(given, leaves, weights),
        torch.autograd.grad(wanted, leaves, weights),
        strict=True,
    ):
        close(mine, theirs)


def test_masks_without_a_batch_and_of_16_bits() -> None:
    q, k, v = (t[0].bfloat16() for t in tensors(SEQ_Q, SEQ_K, heads=HEADS, heads_k=HEADS))
    for dtype in (torch.float32, torch.bfloat16):
        mask = masks(HEADS, SEQ_Q, SEQ_K)["float with -inf"].to(dtype)
        given = scaled_dot_product_attention(q, k, v, mask)
        wanted = of_torch(q.float(), k.float(), v.float(), mask.float())
        torch.testing.assert_close(given.float(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_that_see_no_key_are_0(kind: str) -> None:
    q, k, v = tensors(SEQ_Q, SEQ_K)
    mask = torch.ones(SEQ_Q, SEQ_K, dtype=torch.bool)
    mask[1:3] = False
    given = mask if kind == "bool" else torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    out = scaled_dot_product_attention(q, k, v, given)
    close(out, of_torch(q, k, v, given).nan_to_num())
    assert not out[:, :, 1:3].any()


def test_no_keys() -> None:
    q, k, v = tensors(SEQ_Q, 0)
    out = scaled_dot_product_attention(q, k, v, torch.ones(SEQ_Q, 0, dtype=torch.bool))
    assert torch.equal(out, torch.zeros_like(out))


def test_padding_in_multi_head_attention_and_encoders_is_computed_here() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(2, 6, 32)
    padding = torch.arange(6) >= torch.tensor([[4], [6]])
    wanted = layer(x, src_key_padding_mask=padding)
    with route_sdpa() as routed:
        found = layer(x, src_key_padding_mask=padding)
    assert (routed.here, routed.to_torch.total()) == (1, 0)
    close(found[~padding], wanted[~padding])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(SEQ_Q, SEQ_K).int(), "attn_mask is torch.int32; allowed are torch.bool"),
        (torch.ones(SEQ_Q, SEQ_K).double(), "attn_mask is torch.float64"),
        (torch.ones(SEQ_Q, SEQ_K - 1), r"shape \(5, 7\), which cannot be expanded to .*2, 5, 8"),
        (torch.ones(SEQ_K), "cannot be expanded"),
        (torch.ones(1, 1, 1, SEQ_Q, SEQ_K), "cannot be expanded"),
        (torch.ones(SEQ_Q, SEQ_K, device="meta"), "attn_mask is on meta, query on cpu"),
        ([[True]], "attn_mask is a list; pass a tensor"),
    ],
    ids=["int", "double", "keys", "one dimension", "five", "device", "list"],
)
def test_masks_that_do_not_fit_are_refused(mask: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        scaled_dot_product_attention(*tensors(SEQ_Q, SEQ_K), mask)


def test_a_mask_beside_is_causal_goes_to_torch() -> None:
    q, k, v = tensors(6, 6)
    with pytest.raises(UnsupportedError, match="is_causal is True; pass one of the two"):
        scaled_dot_product_attention(q, k, v, torch.ones(6, 6, dtype=torch.bool), is_causal=True)


def test_a_mask_that_requires_grad_is_read_without_grad() -> None:
    q, k, v = tensors(SEQ_Q, SEQ_K)
    mask = masks(SEQ_Q, SEQ_K)["float"].requires_grad_()
    with torch.no_grad():
        close(
            scaled_dot_product_attention(q, k, v, mask),
            of_torch(q, k, v, mask),
        )


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_in_a_compiled_function_is_computed_here(kind: str) -> None:
    mask = masks(SEQ_Q, SEQ_K)[kind]
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        return of_torch(q, k, v, attn_mask=mask) * 2

    q, k, v = tensors(SEQ_Q, SEQ_K)
    torch._dynamo.reset()
    with route_sdpa(strict=True):
        found = torch.compile(function, backend=keep, fullgraph=True)(q, k, v, mask)
    close(found, function(q, k, v, mask))
    assert "flash_attention.dense" in graphs[0].code


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bool", "float with -inf"])
@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_a_kernel_reads_masks(kind: str, device: str) -> None:
    seq_q, seq_k = 70, 140
    mask = masks(2, 1, seq_q, seq_k)[kind].to(device)
    mask[:, :, 5:9] = False if kind == "bool" else -math.inf
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, n, 2, 64, generator=generator).to(device, torch.bfloat16)
        for n in (seq_q, seq_k, seq_k)
    )
    wanted = of_torch(
        *(t.double().transpose(1, 2) for t in (q, k, v)),
        mask if kind == "bool" else mask.double(),
    ).nan_to_num()
    if device == "cuda":
        with route_sdpa(strict=True):
            out = of_torch(*(t.transpose(1, 2) for t in (q, k, v)), mask)
    else:
        emulation = emulate("rung:26", q, k, v, **mask_options(mask))
        assert not emulation.findings
        out = emulation.output.transpose(1, 2)
    torch.testing.assert_close(out.double(), wanted, rtol=2e-2, atol=2e-2)

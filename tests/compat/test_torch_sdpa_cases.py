# SPDX-License-Identifier: Apache-2.0
"""Random cases of torch's own gradient tests of its flash backend, through its registry: the same
lengths, head dimensions, scales, masks and dropout, and its rule that errors are at most a small
multiple of those of 16-bit products."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from flash_attention import dropout_mask
from flash_attention.compat import torch as compat
from tests.devices import HOPPER

registry: Any = torch.nn.attention
sdpa: Any = F.scaled_dot_product_attention
pytestmark = pytest.mark.skipif(
    not hasattr(registry, "register_flash_attention_impl"), reason="torch has no registry"
)
LENGTHS_Q, LENGTHS_K = (4, 143, 2048), (4, 127, 579, 2048)
HEAD_DIMS = (8, 16, 21, 32, 64, 72, 96, 128, 160, 192, 203, 256)
DROPOUT = (0.0, 0.0, 0.22, 0.48)
HEADS = ((4, 4), (8, 2))
MOST = 3.0  # times the errors of 16-bit products


@pytest.fixture
def active() -> Any:
    registry.activate_flash_attention_impl(compat.register())
    compat.calls.clear()
    yield
    registry.restore_flash_attention_impl(_raise_warn=False)


def attend(
    tensors: list[Tensor], kept: Tensor | None, causal: bool, scale: float | None, dropout: float
) -> Tensor:
    """Attention by plain products in the type of the tensors."""
    q, k, v = tensors
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(above, -torch.inf)
    weights = scores.softmax(-1)
    if kept is not None:
        weights = weights * kept.to(weights.dtype) / (1 - dropout)
    return weights @ v


def state_of(out: Tensor) -> Tensor:
    """The seed and the offset that a backward pass was given."""
    node: Any = out.grad_fn
    while not hasattr(node, "_saved_rng_state"):
        node = node.next_functions[0][0]
    found: Tensor = node._saved_rng_state
    return found.view(torch.int64)


@HOPPER
@pytest.mark.usefixtures("active")
@pytest.mark.parametrize("seed", range(120))
def test_errors_are_those_of_16_bits(seed: int) -> None:
    draw = random.Random(seed)
    dtype = draw.choice((torch.float16, torch.bfloat16))
    queries, keys = draw.choice(LENGTHS_Q), draw.choice(LENGTHS_K)
    causal, d, dropout = draw.random() < 0.5, draw.choice(HEAD_DIMS), draw.choice(DROPOUT)
    keys = queries if causal else keys  # torch's flash backend takes no others
    heads, heads_k = draw.choice(HEADS)
    scale = draw.choice((None, 0.3))
    batch, generator = draw.choice((1, 3)), torch.Generator("cuda").manual_seed(seed)

    def normal(rows: int, heads: int) -> Tensor:
        shape = (batch, heads, rows, d)
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64)

    given = [normal(queries, heads), normal(keys, heads_k), normal(keys, heads_k)]
    given = [t.to(dtype).requires_grad_() for t in given]
    upstream = normal(queries, heads).to(dtype)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = sdpa(*given, None, dropout, causal, scale=scale, enable_gqa=heads != heads_k)
    kept = None
    if dropout:
        kept = dropout_mask(state_of(out), dropout, (batch, heads, queries, keys)).cuda()
    found = [out, *torch.autograd.grad(out, given, upstream)]

    def reference(dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.detach().to(dtype).requires_grad_() for t in given]
        out = attend(leaves, kept, causal, scale, dropout)
        return [out, *torch.autograd.grad(out, leaves, upstream.to(dtype))]

    assert len(compat.calls) == 2
    for name, ours, rough, exact in zip(
        ("out", "dq", "dk", "dv"), found, reference(dtype), reference(torch.float64), strict=True
    ):
        error, allowed = ((t.double() - exact).abs().max() for t in (ours, rough))
        assert error <= MOST * allowed + 1e-5, f"{name}: {error:.2e}, 16 bits have {allowed:.2e}"

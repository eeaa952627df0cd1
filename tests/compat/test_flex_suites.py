# SPDX-License-Identifier: Apache-2.0
"""The suites of attention-gym and of torch's flex_attention through the drop-in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as of_torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from flash_attention import attention
from flash_attention.compat import flex_attention as here
from flash_attention.errors import UnsupportedError
from tests.compat.flex_functions import HEADS, KEYS, causal
from tests.compat.flex_suites import BATCH, gym_masks, torch_masks, torch_scores
from tests.compat.test_flex_attention import (
    LONG_K,
    LONG_Q,
    QUERIES,
    blocked,
    by_definition,
    check,
    near,
    on_device,
    tensors,
)
from tests.devices import HOPPER

flex_attention: Any = here.flex_attention
MASKS = {**gym_masks(), **torch_masks()}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_torch, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_their_gradients(name: str) -> None:
    check(MASKS[name], None, heads_k=2)


@pytest.mark.parametrize("name", torch_scores())
def test_scores_and_their_gradients(name: str) -> None:
    check(None, torch_scores()[name])


@pytest.mark.parametrize("size", [16, 32, (16, 32), (32, 16), 128])
def test_blocks_of_every_size(size: Any) -> None:
    given = tensors()
    block_mask = blocked(causal, BLOCK_SIZE=size)
    wanted = of_torch.flex_attention(*given, block_mask=block_mask)
    torch.testing.assert_close(flex_attention(*given, block_mask=block_mask), wanted)


def test_a_score_that_changes_between_calls() -> None:
    given, adds = tensors(), False

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + h if adds else s * h

    for _ in range(3):
        adds = not adds
        wanted = of_torch.flex_attention(*given, score)
        torch.testing.assert_close(flex_attention(*given, score), wanted)


def test_several_calls_in_one_graph() -> None:
    shift = torch.linspace(-1, 1, KEYS)
    narrow = create_block_mask(lambda b, h, q, k: q - k < 9, None, None, KEYS, KEYS, device="cpu")

    def several(attend: Any, q: Any, k: Any, v: Any) -> Any:
        doubled = shift * 2
        first = attend(q.sin(), k, v, score_mod=lambda s, b, h, i, j: s + doubled[i])
        second = attend(first, k, v, block_mask=narrow)
        return attend(second, k, v, lambda s, b, h, i, j: torch.where(i >= j, s, -1e9)).cos()

    given = [torch.randn(BATCH, HEADS, KEYS, 16).requires_grad_() for _ in "qkv"]
    torch._dynamo.reset()
    compiled = torch.compile(several, backend="aot_eager", fullgraph=True)
    found, wanted = compiled(flex_attention, *given), several(flex_attention, *given)
    torch.testing.assert_close(found, wanted)
    gradients = (torch.autograd.grad(out.sum(), given) for out in (found, wanted))
    torch.testing.assert_close(*gradients)
    of_torchs = several(of_torch.flex_attention, *(t.detach() for t in given))
    torch.testing.assert_close(found, of_torchs, rtol=1e-4, atol=1e-5)


ROWS = torch.ones(HEADS, 8)
LEFT_OUT: dict[str, tuple[Any, str]] = {
    "sums over a captured row": (lambda s, b, h, q, k: s + ROWS[h].sum(), "index every dimension"),
    "products of captured rows": (
        lambda s, b, h, q, k: s + torch.dot(ROWS[h], ROWS[h]),
        "index every dimension",
    ),
    "sines": (lambda s, b, h, q, k: torch.sin(s), "torch's 'sin' is called"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_does_not_apply_is_refused(name: str) -> None:
    score, message = LEFT_OUT[name]
    with pytest.raises(UnsupportedError, match=message):
        flex_attention(*tensors(), score)


@HOPPER
@pytest.mark.parametrize("name", [*MASKS, *torch_scores()])
def test_kernels_and_their_gradients(name: str) -> None:
    mask = {**gym_masks("cuda", LONG_K), **torch_masks("cuda", LONG_K)}.get(name)
    score = torch_scores("cuda", LONG_K).get(name)
    sizes = (BATCH, HEADS, LONG_Q, LONG_K)
    block_mask = None if mask is None else create_block_mask(mask, *sizes, device="cuda")
    seen = None if mask is None else create_mask(mask, *sizes, device="cuda")
    leaves = [t.requires_grad_() for t in on_device("cuda")]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    found = flex_attention(*leaves, score, block_mask, enable_gqa=True)
    wanted = by_definition(*exact, score=score, seen=seen)[0]
    near(found, wanted)
    weights = torch.randn_like(wanted)
    of_found = torch.autograd.grad((found * weights).sum(), leaves)
    of_wanted = torch.autograd.grad((wanted * weights).sum(), exact)
    for gradient, exactly in zip(of_found, of_wanted, strict=True):
        near(gradient, exactly)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross attention to images", "an index from a tensor"])
def test_emulated_kernels(name: str) -> None:
    mask, score = MASKS.get(name), torch_scores().get(name)
    given = [t.bfloat16() for t in tensors()]
    given = [torch.cat([t] * 4, -1)[..., :64].contiguous() for t in given]
    q, k, v = (t.transpose(1, 2) for t in given)
    found = attention(q, k, v, score=score, mask=mask, config="rung:26").transpose(1, 2)
    sizes = (BATCH, HEADS, QUERIES, KEYS)
    seen = None if mask is None else create_mask(mask, *sizes, device="cpu")
    near(found, by_definition(*(t.double() for t in given), score=score, seen=seen)[0])

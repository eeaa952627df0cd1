# SPDX-License-Identifier: Apache-2.0
"""Layers with padding, packing, windows, caps and caches against a mask that is written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat.transformers import attention_forward, padding_mask, register
from flash_attention.errors import UnsupportedError

pytestmark = pytest.mark.slow  # left out of `make quick`

HEADS, HEADS_K, D, D_V = 4, 2, 16, 8
LEFT = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [0] * 6 + [1]], dtype=torch.bool)
RIGHT = LEFT.flip(1)
BOTH = torch.tensor([[0, 1, 1, 1, 1, 0, 0], [1] * 7, [0, 0, 1, 1, 0, 0, 0]], dtype=torch.bool)
BROKEN = torch.tensor([[1, 0, 0, 1, 1, 0, 1], [1] * 7, [0, 1, 0, 1, 0, 1, 0]], dtype=torch.bool)
PACKED = torch.tensor([[1, 1, 1, 2, 2, 3, 3], [1] * 7, [0, 1, 1, 2, 2, 2, 0]])
MASKS = {"left": LEFT, "right": RIGHT, "both": BOTH, "broken": BROKEN, "packed": PACKED}


def layer(is_causal: bool = True) -> Any:
    return SimpleNamespace(is_causal=is_causal)


def states(seq_q: int = 7, seq_k: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return (
        draw(3, HEADS, seq_q, D),
        draw(3, HEADS_K, seq_k, D),
        draw(3, HEADS_K, seq_k, D_V),
    )


def expected(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor,
    scaling: float = D**-0.5,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """What eager attention of transformers computes; the mask is (batch, seq_q, seq_k)."""
    key, value = (t.repeat_interleave(HEADS // HEADS_K, dim=1) for t in (key, value))
    scores = query @ key.mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible[:, None], -math.inf)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2)


def visible(mask: Tensor, seq_q: int, causal: bool, window: int | None = None) -> Tensor:
    """(batch, seq_q, keys) of a mask whose last columns are the queries'."""
    seq_k = mask.shape[1]
    place = torch.arange(seq_k - seq_q, seq_k)[:, None]
    key = torch.arange(seq_k)
    seen = key <= place if causal else torch.ones(seq_q, seq_k, dtype=torch.bool)
    if window is not None:
        seen = seen & ((key - place).abs() < window)
    same = mask[:, -seq_q:, None] == mask[:, None]
    return seen & (same if mask.dtype != torch.bool else True) & (mask != 0)[:, None]


def close(given: Tensor, wanted: Tensor, real: Tensor | None = None) -> None:
    assert given.shape == wanted.shape
    assert given.is_contiguous()
    if real is not None:
        given, wanted = given[real], wanted[real]
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_padding_and_packing(name: str, causal: bool) -> None:
    mask, tensors = MASKS[name], states()
    out, weights = attention_forward(layer(causal), *tensors, mask)
    assert weights is None
    close(out, expected(*tensors, visible(mask, 7, causal)), mask != 0)


def test_is_causal_goes_before_what_the_layer_says() -> None:
    tensors = states()
    causal = visible(torch.ones_like(LEFT), 7, causal=True)
    full = torch.ones_like(causal)
    for says, wanted in ((False, full), (True, causal)):
        out, _ = attention_forward(layer(not says), *tensors, None, is_causal=says)
        close(out, expected(*tensors, wanted))


@pytest.mark.parametrize(
    ("module", "causal"),
    [
        (SimpleNamespace(is_causal=True), True),  # torch's masks have the causal part, ours not
        (SimpleNamespace(is_causal=False), False),
        (SimpleNamespace(is_causal=True, config=SimpleNamespace(is_causal=False)), False),
    ],
    ids=["a decoder", "an encoder", "a decoder called as an encoder"],
)
def test_a_padded_layer_that_says_it_is_not_causal(module: Any, causal: bool) -> None:
    tensors = states()
    out, _ = attention_forward(module, *tensors, LEFT, is_causal=False)
    close(out, expected(*tensors, visible(LEFT, 7, causal)), LEFT)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["left", "right", "both", "packed"])
def test_a_sliding_window_counts_the_query_itself(name: str, causal: bool) -> None:
    mask, tensors = MASKS[name], states()
    out, _ = attention_forward(layer(causal), *tensors, mask, sliding_window=2)
    close(out, expected(*tensors, visible(mask, 7, causal, window=2)), mask != 0)


def test_a_window_over_a_broken_mask_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="pad on one side"):
        attention_forward(layer(), *states(), BROKEN, sliding_window=2)


@pytest.mark.parametrize("mask", [None, LEFT], ids=["plain", "padded"])
def test_scale_softcap_and_sinks(mask: Tensor | None) -> None:
    tensors, sinks = states(), torch.linspace(-1, 1, HEADS, dtype=torch.bfloat16)
    options: dict[str, Any] = {"scaling": 0.4, "softcap": 1.5}
    out, _ = attention_forward(layer(), *tensors, mask, s_aux=sinks, **options)
    seen = visible(torch.ones_like(LEFT) if mask is None else mask, 7, causal=True)
    close(out, expected(*tensors, seen, **options, sinks=sinks.float()), mask)


@pytest.mark.parametrize("name", ["left", "right", "both", "broken"])
@pytest.mark.parametrize("seq_q", [1, 3])
def test_queries_are_the_last_columns_of_a_longer_cache(name: str, seq_q: int) -> None:
    mask = MASKS[name].clone()
    mask[:, -seq_q:] = True
    tensors = states(seq_q)
    out, _ = attention_forward(layer(), *tensors, mask)
    close(out, expected(*tensors, visible(mask, seq_q, causal=True)))


@pytest.mark.parametrize("seq_q", [1, 3])
def test_decoding_without_padding_sees_the_whole_cache(seq_q: int) -> None:
    tensors = states(seq_q)
    out, _ = attention_forward(layer(), *tensors, None)
    close(out, expected(*tensors, visible(torch.ones_like(LEFT), seq_q, causal=True)))


@pytest.mark.parametrize("name", ["left", "right", "broken"])
def test_queries_of_another_sequence_are_all_real(name: str) -> None:
    mask, tensors = MASKS[name], states(4)
    out, _ = attention_forward(layer(is_causal=False), *tensors, mask)
    close(out, expected(*tensors, mask[:, None].expand(-1, 4, -1)))


def test_keys_beyond_the_mask_are_not_there() -> None:
    query, key, value = states(1, 11)
    out, _ = attention_forward(layer(), query, key, value, LEFT)
    cut = expected(query, key[:, :, :7], value[:, :, :7], visible(LEFT, 1, causal=True))
    close(out, cut)


def test_lengths_of_packed_sequences_may_be_given() -> None:
    query, key, value = (t[:1] for t in states())
    bounds, longest = torch.tensor([0, 3, 5, 7]), torch.tensor(3)
    forward: Callable[..., tuple[Tensor, None]] = attention_forward
    lengths = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    tensors = (query, key, value, None)
    out, _ = forward(layer(), *tensors, **lengths, max_length_q=longest, max_length_k=longest)
    close(out, expected(query, key, value, visible(PACKED[:1], 7, causal=True)))
    with pytest.raises(UnsupportedError, match="max_length_q or max_length_k is not"):
        forward(layer(), *tensors, **lengths)


def test_a_mask_is_read_once_for_all_layers_and_again_when_it_changes() -> None:
    mask, tensors = LEFT.clone(), states()
    attention_forward(layer(), *tensors, mask)
    kept = mask._entries[1]  # type: ignore[attr-defined]
    attention_forward(layer(), *tensors, mask)
    assert mask._entries[1] is kept  # type: ignore[attr-defined]
    mask.copy_(RIGHT)
    out, _ = attention_forward(layer(), *tensors, mask)
    close(out, expected(*tensors, visible(RIGHT, 7, causal=True)), RIGHT)


def test_a_mask_that_does_not_count_changes_is_read_again() -> None:
    with torch.inference_mode():
        mask, tensors = LEFT.clone(), states()
        attention_forward(layer(), *tensors, mask)
        mask.copy_(RIGHT)
        out, _ = attention_forward(layer(), *tensors, mask)
    close(out, expected(*tensors, visible(RIGHT, 7, causal=True)), RIGHT)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dropout": 1.0}, r"dropout_p is 1\.0; allowed are"),
        ({"position_bias": torch.zeros(1)}, "position_bias is given"),
        ({"output_attentions": True}, r"output_attentions.*never formed"),
        ({"head_mask": torch.ones(HEADS)}, r"head_mask.*never formed"),
        ({"cache": "paged"}, "paged caches"),
    ],
    ids=["dropout", "position_bias", "output_attentions", "head_mask", "cache"],
)
def test_what_is_not_served_is_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        attention_forward(layer(), *states(), None, **option)
    with pytest.raises(UnsupportedError, match="no mask of single scores"):
        attention_forward(layer(), *states(), torch.zeros(3, 1, 7, 7))
    attention_forward(layer(), *states(), None, output_attentions=False, position_bias=None)


def causal_mask_function(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return k <= q


def and_masks(*mask_functions: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def and_mask(*indices: Tensor) -> Tensor:
        seen = torch.ones((), dtype=torch.bool)
        for function in mask_functions:
            seen = seen & function(*indices)
        return seen

    return and_mask


def packed_sequence_mask_function(packed_sequence_mask: Tensor) -> Callable[..., Tensor]:
    def inner_mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return packed_sequence_mask[b, q] == packed_sequence_mask[b, k]

    return inner_mask


def chunked_overlay(chunk_size: int) -> Callable[..., Tensor]:
    def inner_mask(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k // chunk_size == q // chunk_size

    return inner_mask


def test_masks_name_real_keys_and_are_left_out_where_all_are() -> None:
    assert padding_mask(3, 7, causal_mask_function) is None
    assert padding_mask(3, 7, causal_mask_function, torch.ones_like(LEFT)) is None
    given = padding_mask(3, 7, causal_mask_function, LEFT, q_length=7)
    assert given is not None
    assert torch.equal(given, LEFT)
    last = padding_mask(3, 3, causal_mask_function, BOTH, q_length=1, q_offset=6, kv_offset=4)
    assert last is not None
    assert torch.equal(last, BOTH[:, 4:])


def test_a_static_cache_is_seen_as_far_as_it_is_filled() -> None:
    given = padding_mask(3, 11, causal_mask_function, torch.ones_like(LEFT), q_length=2, q_offset=5)
    assert given is not None
    assert torch.equal(given, torch.ones_like(LEFT))
    unmasked = padding_mask(3, 11, causal_mask_function, None, q_length=2, q_offset=torch.tensor(5))
    assert unmasked is not None
    assert torch.equal(unmasked, torch.ones_like(LEFT))


def test_packed_sequences_are_numbered_from_one() -> None:
    numbers = PACKED[:2] - 1
    pattern = and_masks(causal_mask_function, packed_sequence_mask_function(numbers))
    given = padding_mask(2, 7, pattern, None, q_length=7)
    assert given is not None
    assert torch.equal(given, PACKED[:2])


def test_chunks_are_allowed_where_they_hold_everything_and_other_patterns_never() -> None:
    chunks = and_masks(causal_mask_function, chunked_overlay(8))
    assert padding_mask(3, 8, chunks) is None
    with pytest.raises(UnsupportedError, match=r"chunked_overlay.* over 9 keys.*\"sdpa\""):
        padding_mask(3, 8, chunks, kv_offset=1)
    with pytest.raises(UnsupportedError, match="pattern"):
        padding_mask(3, 8, and_masks(causal_mask_function, lambda b, h, q, k: q == k))


def test_a_compiled_model_ends_where_sequences_are_packed_unsaid() -> None:
    def mask(numbers: Tensor) -> Tensor:
        pattern = and_masks(causal_mask_function, packed_sequence_mask_function(numbers))
        assert padding_mask(2, 7, pattern, None, q_length=7) is None
        return numbers + 1

    torch._dynamo.reset()
    compiled = torch.compile(mask, backend="aot_eager", fullgraph=True)
    compiled(torch.zeros(2, 7, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="pass cu_seq_lens_q"):
        compiled(PACKED[:2])


def test_a_compiled_model_with_another_pattern_is_refused() -> None:
    def mask(x: Tensor) -> Tensor:
        padding_mask(2, 7, chunked_overlay(4), None, q_length=7)
        return x

    torch._dynamo.reset()
    with pytest.raises(Exception, match="pattern inner_mask"):
        torch.compile(mask, backend="aot_eager", fullgraph=True)(PACKED)


def test_names_that_transformers_keeps_for_itself_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="choose another, as 'fa_jit'"):
        register("flash_attention_jit")

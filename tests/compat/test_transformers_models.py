# SPDX-License-Identifier: Apache-2.0
"""Tiny models of transformers: their logits and what they generate, against eager attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat.transformers import NAME, register
from flash_attention.errors import UnsupportedError

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 99,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = torch.randint(3, 99, (3, 17), generator=torch.Generator().manual_seed(0))
ONES = torch.ones_like(IDS)
LEFT = ONES.clone()
LEFT[0, :4] = LEFT[2, :9] = 0
MASKS = {"none": None, "ones": ONES, "left": LEFT, "right": LEFT.flip(1)}
MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "llama": lambda: (transformers.LlamaForCausalLM, transformers.LlamaConfig(**SIZES)),
    "mistral": lambda: (
        transformers.MistralForCausalLM,
        transformers.MistralConfig(**SIZES, sliding_window=5),
    ),
    "gemma2": lambda: (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(
            **SIZES, sliding_window=5, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
        ),
    ),
    "gpt_oss": lambda: (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig(
            **SIZES,
            sliding_window=5,
            num_local_experts=2,
            num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
    ),
}


@pytest.fixture(params=MODELS)
def models(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """One model with eager attention, and its twin with ours."""
    torch.manual_seed(0)
    kind, config = MODELS[request.param]()
    config._attn_implementation = "eager"
    eager = kind(config).eval().requires_grad_(False)
    for name, parameter in eager.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation(register())
    assert ours.config._attn_implementation == NAME
    return eager, ours


def close(given: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", MASKS)
def test_logits(models: tuple[Any, Any], padding: str) -> None:
    mask = MASKS[padding]
    wanted, given = (model(IDS, attention_mask=mask).logits for model in models)
    real = (ONES if mask is None else mask).bool()
    close(given[real], wanted[real])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["ones", "left"])
def test_generation(models: tuple[Any, Any], padding: str, cache: str) -> None:
    wanted, given = (
        model.generate(
            IDS,
            attention_mask=MASKS[padding],
            max_new_tokens=8,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
        )
        for model in models
    )
    assert torch.equal(given, wanted)


def test_a_prompt_in_two_parts(models: tuple[Any, Any]) -> None:
    def second_half(model: Any) -> Tensor:
        first = model(IDS[:, :9], attention_mask=LEFT[:, :9], use_cache=True)
        cache = first.past_key_values
        logits: Tensor = model(IDS[:, 9:], attention_mask=LEFT, past_key_values=cache).logits
        return logits[LEFT[:, 9:].bool()]

    wanted, given = map(second_half, models)
    close(given, wanted)


def test_packed_sequences(models: tuple[Any, Any]) -> None:
    places = torch.cat([torch.arange(n) for n in (5, 9, 3)])[None]
    wanted, given = (
        model(IDS[:1], position_ids=places, use_cache=False).logits for model in models
    )
    close(given, wanted)


def test_a_compiled_model_is_one_graph(models: tuple[Any, Any]) -> None:
    torch._dynamo.reset()
    eager, ours = models
    compiled: Callable[..., Any] = torch.compile(ours, backend="aot_eager", fullgraph=True)
    close(compiled(IDS, use_cache=False).logits, eager(IDS, use_cache=False).logits)


def test_training_is_refused() -> None:
    kind, config = MODELS["llama"]()
    model = kind(config)
    model.set_attn_implementation(register())
    with pytest.raises(UnsupportedError, match="requires grad"):
        model(IDS)

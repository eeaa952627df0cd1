# SPDX-License-Identifier: Apache-2.0
"""Tiny models of transformers: their logits and what they generate, against eager attention."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat.transformers import register
from tests.compat.tiny_models import IDS, LEFT, MASKS, MODELS, ONES, transformers, twins
from tests.gate import in_turn, one_in

pytestmark = pytest.mark.slow  # left out of `make quick`


@pytest.fixture(params=MODELS)
def models(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return twins(request.param)


def close(given: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", MASKS)
def test_logits(models: tuple[Any, Any], padding: str) -> None:
    mask = MASKS[padding]
    wanted, given = (model(IDS, attention_mask=mask).logits for model in models)
    real = (ONES if mask is None else mask).bool()
    close(given[real], wanted[real])


@pytest.mark.parametrize(
    ("models", "asked"),
    in_turn(MODELS, product(["left", "ones"], ["static", "dynamic"])),
    indirect=["models"],
)
def test_generation(models: tuple[Any, Any], asked: tuple[str, str]) -> None:
    padding, cache = asked
    wanted, given = (
        model.generate(
            IDS,
            attention_mask=MASKS[padding],
            min_new_tokens=32,
            max_new_tokens=32,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
        )
        for model in models
    )
    assert given.shape == (3, 17 + 32)
    assert torch.equal(given, wanted)


def test_a_prompt_in_two_parts(models: tuple[Any, Any]) -> None:
    def second_half(model: Any) -> Tensor:
        first = model(IDS[:, :9], attention_mask=LEFT[:, :9], use_cache=True)
        cache = first.past_key_values
        logits: Tensor = model(IDS[:, 9:], attention_mask=LEFT, past_key_values=cache).logits
        return logits[LEFT[:, 9:].bool()]

    wanted, given = map(second_half, models)
    close(given, wanted)


@pytest.mark.parametrize("models", one_in(len(MODELS), MODELS), indirect=True)
def test_a_compiled_model_is_one_graph(models: tuple[Any, Any]) -> None:
    torch._dynamo.reset()
    eager, ours = models
    if eager.config.model_type == "gpt_oss" and transformers.__version__ < "5":
        pytest.skip("its experts are no graph before transformers 5")
    compiled: Callable[..., Any] = torch.compile(ours, backend="aot_eager", fullgraph=True)
    close(compiled(IDS, use_cache=False).logits, eager(IDS, use_cache=False).logits)


@pytest.mark.parametrize("padding", MASKS)
def test_models_train(models: tuple[Any, Any], padding: str) -> None:
    mask = MASKS[padding]
    real = (ONES if mask is None else mask).bool()
    labels = IDS.masked_fill(~(real & real.roll(1, 1)), -100)  # padding predicts nothing

    def gradients(model: Any) -> dict[str, Tensor]:
        model.train().requires_grad_()
        model(IDS, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    wanted, given = map(gradients, models)
    assert given.keys() == wanted.keys()
    for name, gradient in given.items():
        close(gradient, wanted[name])


def test_dropout_is_for_training() -> None:
    kind, config = MODELS["llama"]()
    config.attention_dropout = 0.5
    model = kind(config).train()
    model.set_attn_implementation(register())

    def logits(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        found: torch.Tensor = model(IDS).logits
        return found

    first, again, other = logits(1), logits(1), logits(2)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    model.eval()
    assert torch.equal(logits(1), logits(2))

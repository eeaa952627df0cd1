# SPDX-License-Identifier: Apache-2.0
"""Which versions of transformers and which of their models are supported, and what is said to the
others."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from flash_attention.compat.sdpa import route_sdpa
from flash_attention.compat.transformers import register
from flash_attention.errors import UnsupportedError
from tests.compat.tiny_models import (
    ENCODERS,
    GPT2,
    IDS,
    IS_5,
    LEFT,
    MASKS,
    ONES,
    SIZES,
    WITHOUT_SINKS,
    calls_registered,
    deaf,
    source_has,
    transformers,
    twins,
)

VERSION = transformers.__version__


@pytest.mark.parametrize("version", ["4.30.2", "4.56.2", "6.0.0", "10.1"])
def test_other_versions_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", version)
    message = rf"transformers {version} is installed; supported are 4\.57 to 5\.x, install one"
    with pytest.raises(UnsupportedError, match=message):
        register()


@pytest.mark.parametrize("version", ["4.57.0", "4.58.1", "5.0.0rc1", "5.22.2"])
def test_supported_versions_are_not(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", version)
    assert register() == "fa_jit"


FLASH = '"flash_attention_2" after compat.install()'
SDPA = '"sdpa" and call it inside compat.sdpa.route_sdpa()'
DEAF = {"Bloom": '"eager"', "GPTNeo": FLASH}  # never look for registered ones
if not calls_registered("bert"):
    DEAF["Bert"] = SDPA
if not calls_registered("t5"):
    DEAF["T5"] = '"eager"'


@pytest.mark.parametrize("name", DEAF)
def test_models_that_never_call_it_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        deaf(name, register())
    said = rf"{name}For\w+ of transformers {VERSION} does not call registered implementations"
    assert re.match(said, str(error.value))
    assert f"attn_implementation={DEAF[name]}" in str(error.value)
    assert ("install transformers 5" in str(error.value)) is not IS_5


@pytest.mark.skipif(calls_registered("bert"), reason="BERT calls registered implementations")
def test_route_sdpa_serves_bert() -> None:
    model, eager = deaf("Bert", "sdpa"), deaf("Bert", "eager")
    with torch.no_grad(), route_sdpa() as routed:
        given = model(IDS).logits
        assert (routed.here, routed.to_torch) == (2, {})
        torch.testing.assert_close(given, eager(IDS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not calls_registered("t5"), reason="T5 calls no registered implementations")
def test_position_biases_are_refused() -> None:
    config = transformers.T5Config(**SIZES)
    model = transformers.T5EncoderModel._from_config(config, attn_implementation=register())
    with pytest.raises(UnsupportedError, match="position_bias is given"):
        model.train()(IDS)


@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("name", ["gpt2", *(name for name in WITHOUT_SINKS if name in ENCODERS)])
def test_logits(name: str, padding: str) -> None:
    mask = MASKS[padding]
    wanted, given = (model(IDS, attention_mask=mask).logits for model in twins(name))
    real = (ONES if mask is None else mask).bool()
    torch.testing.assert_close(given[real], wanted[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", [None, LEFT], ids=["plain", "padded"])
@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_decoding_with_and_without_a_mask(name: str, mask: torch.Tensor | None) -> None:
    def logits(model: Any) -> torch.Tensor:
        cache = transformers.DynamicCache(config=model.config)
        if name == "static":
            cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        parts = []
        for start, end in ((0, 9), (9, 16), (16, 17)):
            shown = None if mask is None else mask[:, :end]
            part = model(IDS[:, start:end], attention_mask=shown, past_key_values=cache)
            parts.append(part.logits)
        return torch.cat(parts, dim=1)

    wanted, given = map(logits, twins("llama"))
    real = (ONES if mask is None else mask).bool()
    torch.testing.assert_close(given[real], wanted[real], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(
    not source_has("utils/generic.py", "is_causal"), reason="a call of a model has no is_causal"
)
@pytest.mark.parametrize("padding", MASKS)
def test_a_causal_model_may_be_called_as_an_encoder(padding: str) -> None:
    mask = MASKS[padding]
    wanted, given = (
        model(IDS, attention_mask=mask, is_causal=False, use_cache=False).logits
        for model in twins("llama")
    )
    real = (ONES if mask is None else mask).bool()
    torch.testing.assert_close(given[real], wanted[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", *(name for name in WITHOUT_SINKS if name == "bert")])
def test_a_model_whose_config_has_dropout_trains(name: str) -> None:
    kind, config = (GPT2 | WITHOUT_SINKS)[name]()
    model = kind._from_config(config, attn_implementation=register()).train()

    def loss(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        found: torch.Tensor = model(IDS, labels=IDS).loss
        return found

    assert loss(1) == loss(1) != loss(2)
    loss(1).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())

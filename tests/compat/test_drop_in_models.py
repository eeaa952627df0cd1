# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with attn_implementation="flash_attention_2" after `install`, against
eager attention. On the CPU torch computes in float32; on a GPU the kernels do, in bfloat16."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import flash_attn, install, uninstall
from tests.compat.test_transformers_bf16 import assert_as_near
from tests.compat.test_transformers_dtypes import BF16, assert_changes_as_near
from tests.compat.tiny_models import (
    ENCODERS,
    IDS,
    LEFT,
    MASKS,
    ONES,
    WITHOUT_SINKS,
    calls_registered,
    deaf,
    transformers,
    twins,
)
from tests.devices import DEVICES

DECODERS = [name for name in WITHOUT_SINKS if name not in ENCODERS]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    install()
    yield
    uninstall()


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The queries of the calls that are computed here; each test makes some."""
    seen: list[Tensor] = []

    def counted(q: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(q)
        return attention(q, *args, **kwargs)

    monkeypatch.setattr(flash_attn, "attention", counted)
    yield seen
    assert seen


def logits(model: Any, device: str, **inputs: Any) -> Tensor:
    moved = {name: t.to(device) if isinstance(t, Tensor) else t for name, t in inputs.items()}
    result: Tensor = model.to(device)(**moved).logits
    return result


def check(name: str, device: str, real: Tensor | None = None, **inputs: Any) -> None:
    """Logits of tokens that are no padding."""
    shown = slice(None) if real is None else real.to(device)
    eager, ours = twins(name, "flash_attention_2")
    if device == "cpu":
        given, wanted = (logits(model, device, **inputs)[shown] for model in (ours, eager))
        torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)
    else:
        ours, coarse = ours.to(torch.bfloat16), copy.deepcopy(eager).to(torch.bfloat16)
        eager.load_state_dict(ours.state_dict())
        models = (eager, coarse, ours)
        assert_as_near(*(logits(model, device, **inputs)[shown] for model in models))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("name", WITHOUT_SINKS)
def test_logits(name: str, padding: str, device: str) -> None:
    mask = MASKS[padding]
    real = None if mask is None else mask.bool()
    check(name, device, real, input_ids=IDS, attention_mask=mask)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", DECODERS)
def test_packed_sequences(name: str, device: str) -> None:
    places = torch.cat([torch.arange(n) for n in (5, 9, 3)])[None]
    check(name, device, input_ids=IDS[:1], position_ids=places, use_cache=False)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", DECODERS)
def test_generation(name: str, cache: str) -> None:
    wanted, given = (
        model.generate(
            IDS,
            attention_mask=LEFT,
            min_new_tokens=8,
            max_new_tokens=8,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
        )
        for model in twins(name, "flash_attention_2")
    )
    assert torch.equal(given, wanted)


@pytest.mark.parametrize("name", [n for n in WITHOUT_SINKS if n in ("llama", *ENCODERS)])
def test_models_train(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_DETERMINISTIC", "1")  # what transformers asks for

    def gradients(model: Any) -> dict[str, Tensor]:
        model.train().requires_grad_()
        for layer in model.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0
        model(IDS, labels=IDS).loss.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    wanted, given = map(gradients, twins(name, "flash_attention_2"))
    assert given.keys() == wanted.keys()
    for parameter, gradient in given.items():
        torch.testing.assert_close(gradient, wanted[parameter], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("name", ["Falcon", "GPTJ"])
def test_models_with_layers_of_their_own(name: str, padding: str) -> None:
    mask = MASKS[padding]
    real = (ONES if mask is None else mask).bool()
    with torch.no_grad():
        given, wanted = (
            deaf(name, implementation)(IDS, attention_mask=mask).logits[real]
            for implementation in ("flash_attention_2", "eager")
        )
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(calls_registered("modernbert"), reason="it has no layers of its own")
@pytest.mark.parametrize("padding", MASKS)
def test_modernbert(padding: str) -> None:
    """It packs its rows, rotates them with flash-attn's layers and computes in bfloat16."""
    mask = MASKS[padding]
    real = (ONES if mask is None else mask).bool()
    exact, coarse, ours = (
        deaf("ModernBert", name) for name in ("eager", "eager", "flash_attention_2")
    )
    coarse.to(BF16)
    results = [model(IDS, attention_mask=mask).logits[real] for model in (exact, coarse, ours)]
    assert_as_near(*(logits.detach() for logits in results))
    for logits in results:
        logits.float().square().sum().backward()
    for parameters in zip(*(model.parameters() for model in (exact, coarse, ours)), strict=True):
        wanted, *_ = gradients = [p.grad for p in parameters]
        if wanted is not None:
            assert_changes_as_near(*gradients)


def test_a_model_is_made_with_it() -> None:
    kind, config = WITHOUT_SINKS["llama"]()
    model = kind._from_config(config, attn_implementation="flash_attention_2").eval()
    assert model.config._attn_implementation == "flash_attention_2"
    with torch.no_grad():
        assert model(IDS, attention_mask=ONES).logits.isfinite().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="transformers takes flash-attn on a GPU")
def test_transformers_asks_again_after_uninstall(calls: list[Tensor]) -> None:
    kind, config = WITHOUT_SINKS["llama"]()
    calls.append(IDS)
    uninstall()
    with pytest.raises(ImportError, match="FlashAttention2"):
        kind._from_config(config, attn_implementation="flash_attention_2")
    assert not transformers.utils.is_flash_attn_2_available()

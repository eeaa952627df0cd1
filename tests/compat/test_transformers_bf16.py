# SPDX-License-Identifier: Apache-2.0
"""Tiny models in bfloat16, prefilled and decoding: as near to float32 as with eager attention.

On a GPU the kernels compute, on the CPU torch does.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compat.tiny_models import IDS, LEFT, MASKS, MODELS, ONES, twins
from tests.devices import on_devices
from tests.gate import in_turn, one_in

ERROR_FACTOR = 2  # how much worse than eager attention in bfloat16 ours may be
PREFILLED = 9  # tokens before decoding begins
PADDINGS = {"ones": ONES, "left": LEFT}


def models(name: str, device: str) -> tuple[Any, Any, Any]:
    """Eager attention in float32, in bfloat16, and ours in bfloat16."""
    eager, ours = twins(name)
    rounded = ours.to(device, torch.bfloat16)
    exact = eager.to(device).float()
    coarse = copy.deepcopy(eager).to(torch.bfloat16)
    exact.load_state_dict(rounded.state_dict())
    return exact, coarse, rounded


def assert_as_near(exact: Tensor, coarse: Tensor, ours: Tensor) -> None:
    """Of logits: the largest error, and the whole of it."""
    eager_error, error = ((t.float() - exact).abs() for t in (coarse, ours))
    step = torch.finfo(torch.bfloat16).eps * float(exact.abs().max())
    assert float(error.max()) <= ERROR_FACTOR * float(eager_error.max()) + step
    assert float(error.mean()) <= ERROR_FACTOR * float(eager_error.mean())


@pytest.mark.parametrize(("name", "padding", "device"), on_devices(in_turn(MODELS, MASKS)))
def test_prefill(name: str, padding: str, device: str) -> None:
    mask = MASKS[padding]
    mask = None if mask is None else mask.to(device)
    real = ONES.to(device).bool() if mask is None else mask.bool()
    given = IDS.to(device)
    assert_as_near(
        *(model(given, attention_mask=mask).logits[real] for model in models(name, device))
    )


def decoded(model: Any, mask: Tensor, device: str) -> Tensor:
    """Logits of the tokens that come one by one after a prompt, those of padding left out."""
    ids, mask = IDS.to(device), mask.to(device)
    output = model(ids[:, :PREFILLED], attention_mask=mask[:, :PREFILLED], use_cache=True)
    logits = []
    for place in range(PREFILLED, ids.shape[1]):
        output = model(
            ids[:, place : place + 1],
            attention_mask=mask[:, : place + 1],
            past_key_values=output.past_key_values,
        )
        logits.append(output.logits)
    together: Tensor = torch.cat(logits, dim=1)
    return together[mask[:, PREFILLED:].bool()]


@pytest.mark.parametrize(("name", "padding", "device"), on_devices(in_turn(MODELS, PADDINGS)))
def test_decoding(name: str, padding: str, device: str) -> None:
    mask = PADDINGS[padding]
    assert_as_near(*(decoded(model, mask, device) for model in models(name, device)))


@pytest.mark.parametrize(("name", "device"), on_devices(one_in(2, MODELS)))
def test_greedy_tokens_are_the_best_of_one_pass(name: str, device: str) -> None:
    *_, ours = models(name, device)
    generated = ours.generate(
        IDS.to(device),
        attention_mask=LEFT.to(device),
        min_new_tokens=32,
        max_new_tokens=32,
        do_sample=False,
    )
    assert generated.shape == (3, 17 + 32)
    again = ours(generated, attention_mask=torch.cat((LEFT, ONES, ONES), 1)[:, :49].to(device))
    chosen = again.logits[:, 16:-1].float()
    taken = chosen.gather(-1, generated[:, 17:, None])[..., 0]
    best = chosen[..., 3:].amax(-1)
    step = torch.finfo(torch.bfloat16).eps * float(chosen.abs().max())
    assert bool((taken >= best - 4 * step).all())

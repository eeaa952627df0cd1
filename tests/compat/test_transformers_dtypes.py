# SPDX-License-Identifier: Apache-2.0
"""Models under autocast, with float32 norms and with quantised weights: the dtype that attention is
computed in, and that logits and gradients are as near to float32 as with eager attention."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flash_attention.compat import transformers
from tests.compat.test_transformers_bf16 import ERROR_FACTOR, assert_as_near
from tests.compat.tiny_models import ENCODERS, GPT2, IDS, LEFT, MODELS, WITHOUT_SINKS, twins
from tests.devices import HOPPER_DEVICES
from tests.gate import EXHAUSTIVE

attention_forward: Any = transformers.attention_forward
BF16 = torch.bfloat16
NAMES = [*MODELS, *GPT2, *(name for name in WITHOUT_SINKS if name in ENCODERS)]


def passed(
    model: Any, device: str, autocast: bool, **options: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits of tokens that are no padding, and the gradients of all parameters."""
    model.to(device).train().requires_grad_()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    real = LEFT.bool()
    labels = IDS.masked_fill(~(real & real.roll(1, 1)), -100).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        result = model(IDS.to(device), attention_mask=LEFT.to(device), labels=labels, **options)
    result.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return result.logits[real.to(device)].detach(), gradients


@pytest.mark.parametrize("device", HOPPER_DEVICES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES),
        (NAMES[0], {"use_cache": False}),
        *(
            pytest.param(name, {"use_cache": False}, marks=EXHAUSTIVE)
            for name in NAMES[1:]
            if name not in ENCODERS
        ),
    ],
    ids=str,
)
def test_autocast(name: str, options: dict[str, bool], device: str) -> None:
    exact, ours = twins(name)
    coarse = copy.deepcopy(exact)
    (right, wanted), (near, eager), (given, gradients) = (
        passed(model, device, autocast, **options)
        for model, autocast in ((exact, False), (coarse, True), (ours, True))
    )
    assert_as_near(right, near, given)
    assert gradients.keys() == wanted.keys()
    for parameter, gradient in gradients.items():
        assert_changes_as_near(wanted[parameter], eager[parameter], gradient)


def assert_changes_as_near(exact: Tensor, coarse: Tensor, ours: Tensor) -> None:
    """Of gradients or steps: the whole of the error. That of a few numbers may be luck, so there is
    room for one rounding. The gradient of a bias of keys is 0."""
    eager_error, error = (float((t.float() - exact).norm()) for t in (coarse, ours))
    rounding = torch.finfo(BF16).eps * float(exact.norm())
    assert error <= ERROR_FACTOR * eager_error + rounding + 1e-6


class Layer(nn.Module):
    """A layer of attention with a config and a projection."""

    is_causal = True

    def __init__(self, weights: nn.Module, **config: Any) -> None:
        super().__init__()
        self.projection = weights
        self.config = SimpleNamespace(**config)


class Conv1D(nn.Module):
    """The projection of GPT-2, which is no torch.nn.Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=BF16))


class Packed(nn.Module):
    """A projection whose weights are packed into bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.uint8), requires_grad=False)


@pytest.mark.parametrize(
    ("layer", "wanted"),
    [
        (Layer(nn.Linear(4, 4, dtype=BF16)), BF16),
        (Layer(nn.Linear(4, 4)), torch.float32),
        (Layer(Conv1D()), BF16),
        (Layer(Packed(), _is_quantized=True, dtype=BF16), BF16),
        (Layer(Packed(), _pre_quantization_dtype=torch.float16), torch.float16),
    ],
    ids=["weights", "float32", "conv1d", "quantised", "quantised before 5"],
)
@pytest.mark.parametrize("lower", [(), (2,)], ids=["all float32", "v in 16 bits"])
def test_float32_tensors_get_the_dtype_of_the_layer(
    layer: Layer, wanted: torch.dtype, lower: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 4, 9, 16, generator=generator) for _ in range(3)]
    for i in lower:
        tensors[i] = tensors[i].to(wanted)
    out, _ = attention_forward(layer, *tensors, None)
    assert out.dtype == wanted
    same, _ = attention_forward(layer, *(t.to(wanted) for t in tensors), None)
    assert torch.equal(out, same)


def trained(model: Any, folder: Path, bf16: bool) -> dict[str, Tensor]:
    """The parameters after a few steps of transformers' Trainer on the CPU."""
    from transformers import Trainer, TrainingArguments

    model.requires_grad_()
    arguments = TrainingArguments(
        str(folder),
        bf16=bf16,
        use_cpu=True,
        max_steps=3,
        per_device_train_batch_size=3,
        learning_rate=1e-3,
        optim="sgd",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    rows = [{"input_ids": row, "labels": row} for row in IDS]
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="transformers' Trainer needs accelerate"
)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_trainer_in_bf16(name: str, tmp_path: Path) -> None:
    exact, ours = twins(name)
    start = {name: p.clone() for name, p in exact.named_parameters()}
    coarse = copy.deepcopy(exact)
    wanted, eager, given = (
        trained(model, tmp_path, bf16)
        for model, bf16 in ((exact, False), (coarse, True), (ours, True))
    )
    for parameter, before in start.items():
        steps = (weights[parameter] - before for weights in (wanted, eager, given))
        assert_changes_as_near(*steps)
    assert any(not torch.equal(wanted[parameter], before) for parameter, before in start.items())

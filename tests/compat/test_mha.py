# SPDX-License-Identifier: Apache-2.0
"""flash_attn.modules.mha after `install`: its layers of attention, and what it says of others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import install, mha, uninstall
from flash_attention.errors import UnsupportedError
from flash_attention.scores import alibi

STARTS = torch.tensor([0, 6, 16], dtype=torch.int32)
LENGTHS: Any = {"cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS}
LENGTHS |= {"max_seqlen_q": 10, "max_seqlen_k": 10}


@pytest.fixture
def module() -> Iterator[Any]:
    install()
    yield import_module("flash_attn.modules.mha")
    uninstall()


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_self_attention(module: Any) -> None:
    layer = module.FlashSelfAttention(softmax_scale=0.3, window_size=(3, 0)).eval()
    qkv = draw(2, 8, 3, 4, 16).requires_grad_()
    out = layer(qkv, causal=True)
    wanted = attention(*qkv.unbind(2), causal=True, window=(3, 0), softmax_scale=0.3)
    torch.testing.assert_close(out, wanted)
    upstream = draw(*out.shape)
    given, right = (torch.autograd.grad(o, qkv, upstream)[0] for o in (out, wanted))
    torch.testing.assert_close(given, right)
    rows = draw(16, 3, 4, 16)
    packed = layer(rows, cu_seqlens=STARTS, max_seqlen=10)
    wanted = attention(*rows.unbind(1), window=(3, 0), softmax_scale=0.3, **LENGTHS)
    torch.testing.assert_close(packed, wanted)


def test_cross_attention(module: Any) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.05])
    layer = module.FlashCrossAttention(causal=True, alibi_slopes=slopes).eval()
    q, kv = draw(2, 5, 4, 16), draw(2, 9, 2, 2, 16)
    change = alibi(slopes)

    def shifted(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return change(score, batch, head, query + 4, key)

    wanted = attention(q, *kv.unbind(2), causal=True, score=shifted)
    torch.testing.assert_close(layer(q, kv), wanted)
    assert not layer.state_dict()
    rows, pairs = draw(16, 4, 16), draw(16, 2, 2, 16)
    plain = module.FlashCrossAttention().eval()
    packed = plain(rows, pairs, None, STARTS, 10, STARTS, 10)
    torch.testing.assert_close(packed, attention(rows, *pairs.unbind(1), **LENGTHS))


def test_dropout_is_for_training(module: Any) -> None:
    layer = module.FlashSelfAttention(attention_dropout=0.5)
    qkv = draw(1, 8, 3, 2, 16)
    assert not torch.equal(layer(qkv), layer.eval()(qkv))
    torch.testing.assert_close(layer(qkv), attention(*qkv.unbind(2)))


def test_lengths_come_together(module: Any) -> None:
    with pytest.raises(UnsupportedError, match="cu_seqlens is given without max_seqlen"):
        module.FlashSelfAttention()(draw(16, 3, 4, 16), cu_seqlens=STARTS)
    with pytest.raises(UnsupportedError, match="pass all"):
        module.FlashCrossAttention()(draw(16, 4, 16), draw(16, 2, 4, 16), cu_seqlens=STARTS)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("name", mha.ELSEWHERE)
def test_other_classes_are_said_to_be_elsewhere(name: str) -> None:
    message = f"mha.{name} is in the package flash-attn, .*replace=True"
    with pytest.raises(ImportError, match=message):
        exec(f"from flash_attn.modules.mha import {name}")


def test_parameters_are_those_of_flash_attn(module: Any) -> None:
    made = ["causal", "softmax_scale", "attention_dropout", "window_size", "alibi_slopes"]
    made.append("deterministic")
    for name, called in {
        "FlashSelfAttention": "self qkv causal cu_seqlens max_seqlen",
        "FlashCrossAttention": "self q kv causal cu_seqlens max_seqlen cu_seqlens_k max_seqlen_k",
    }.items():
        layer = getattr(module, name)
        assert list(inspect.signature(layer).parameters) == made
        assert list(inspect.signature(layer.forward).parameters) == called.split()


def test_an_installed_package_keeps_its_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "flash_attn" / "modules"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    (folder / "mha.py").write_text("from flash_attn import flash_attn_func\nMHA = 'real'\n")
    monkeypatch.syspath_prepend(tmp_path)
    install(replace=True)
    theirs = import_module("flash_attn.modules.mha")
    assert theirs.MHA == "real"
    assert theirs.flash_attn_func.__module__ == "flash_attention.compat.flash_attn"
    uninstall()

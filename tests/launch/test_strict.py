# SPDX-License-Identifier: Apache-2.0
"""Strict mode: what a GPU refuses is refused on the CPU, in the same words."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.arch import Arch
from flash_attention.call.call import Call
from flash_attention.compat.flash_attn import flash_attn_func
from flash_attention.errors import UnsupportedError
from flash_attention.launch import strict
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv

VARIABLE = "FLASH_ATTENTION_STRICT"
Tensors = tuple[Tensor, ...]


def tensors(d_head: int = 64, dtype: torch.dtype = torch.bfloat16, **more: Any) -> Tensors:
    return generate_qkv(2, 64, 4, d_head, dtype, **more)


def sliced() -> Tensors:
    """Rows that start where no 16-byte copy may."""
    return tuple(t[..., 1:65] for t in tensors(72))


REFUSED: dict[str, tuple[Tensors, dict[str, Any], str]] = {
    "dtype": (tensors(dtype=torch.float32), {}, "q is torch.float32; allowed are torch.float16"),
    "wide heads": (tensors(520), {}, "520"),
    "strides": (
        tuple(t.transpose(2, 3).contiguous().transpose(2, 3) for t in tensors()),
        {},
        "the last dimension of q has stride 4",
    ),
    "address": (sliced(), {}, "q starts at address"),
}


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("case", REFUSED)
def test_what_a_gpu_refuses_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v), options, message = REFUSED[case]
    monkeypatch.delenv(VARIABLE, raising=False)
    attention(q, k, v, **options)
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(UnsupportedError, match=message):
        attention(q, k, v, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("case", REFUSED)
def test_the_words_are_those_of_a_gpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, options, _ = REFUSED[case]
    major, minor = torch.cuda.get_device_capability()
    monkeypatch.setenv(VARIABLE, f"sm_{major}{minor}")
    with pytest.raises(UnsupportedError) as on_cpu:
        attention(*given, **options)
    room = [torch.empty(t.untyped_storage().nbytes() // t.itemsize, dtype=t.dtype) for t in given]
    moved = [
        memory.cuda().as_strided(t.shape, t.stride(), t.storage_offset())
        for memory, t in zip(room, given, strict=True)
    ]
    with pytest.raises(UnsupportedError) as on_gpu:
        attention(*moved, **options)
    same = str(on_gpu.value).split("address")[0]
    assert str(on_cpu.value).split("address")[0] == same


@pytest.mark.usefixtures("no_compile")
def test_what_a_gpu_computes_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors()
    wanted = attention(q, k, v, causal=True)
    monkeypatch.setenv(VARIABLE, "1")
    assert torch.equal(attention(q, k, v, causal=True), wanted)


@pytest.mark.usefixtures("no_compile")
def test_the_variable_names_an_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors()
    wanted = attention(q, k, v)
    planned = []

    class Recorded(Plan):
        def __init__(self, call: Call, arch: Arch) -> None:
            super().__init__(call, arch=arch)
            planned.append((arch.name, self.config.prefix))

    monkeypatch.setattr(strict, "Plan", Recorded)
    for name in ("sm_90", "sm_86"):
        monkeypatch.setenv(VARIABLE, name)
        assert torch.equal(attention(q, k, v), wanted)
    assert planned == [("sm_90", "hopper"), ("sm_86", "")]
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(UnsupportedError, match=r"FLASH_ATTENTION_STRICT is 'yes'; .*sm_80"):
        attention(q, k, v)


@pytest.mark.parametrize("value", ["", "0"])
def test_it_is_off_unless_asked_for(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, value)
    q, k, v = REFUSED["dtype"][0]
    attention(q, k, v)


def test_other_names_are_strict_too(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = REFUSED["dtype"][0]
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(UnsupportedError, match=r"q is torch\.float32"):
        flash_attn_func(q, k, v)
    with pytest.raises(UnsupportedError, match=r"q is torch\.float32"):
        torch.ops.flash_attention.dense(q, k, v)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("which", range(3), ids="qkv")
def test_functions_of_flash_attn_copy_what_a_gpu_refuses(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    function: Any = flash_attn_func
    given = list(tensors())
    wanted = function(*given)
    given[which] = given[which].mT.contiguous().mT
    monkeypatch.setenv(VARIABLE, "1")
    assert torch.equal(function(*given), wanted)
    with pytest.raises(UnsupportedError, match=f"the last dimension of {'qkv'[which]} has stride"):
        attention(*given)


@pytest.mark.usefixtures("no_compile")
def test_gradients_that_a_gpu_refuses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = [t.requires_grad_() for t in tensors(dtype=torch.float32)]
    out = attention(*leaves)
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(UnsupportedError, match=r"q is torch\.float32; allowed are torch\.float16"):
        out.sum().backward()


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(("d", "d_v", "refused"), [(576, 512, True), (448, 384, False)])
def test_a_call_whose_gradients_a_gpu_refuses_is_refused(
    d: int, d_v: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, _ = generate_qkv(1, 8, 2, d, torch.bfloat16, n_heads_k=1)
    q.requires_grad_()
    attention(q, k, k[..., :d_v]).sum().backward()
    monkeypatch.setenv(VARIABLE, "sm_90")
    message = rf"q has d_head {d} and v {d_v} \(MLA\), and no kernel computes their gradients"
    with pytest.raises(UnsupportedError, match=message) if refused else nullcontext():
        attention(q, k, k[..., :d_v]).sum().backward()
    with torch.no_grad():
        attention(q, k, k[..., :d_v])

# SPDX-License-Identifier: Apache-2.0
"""Saved tensors that hooks return at other addresses and with other strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from flash_attention import UnsupportedError, attention, backward
from flash_attention.reference.judge import cu_seqlens, generate_qkv
from tests.gradients import leaves

STRICT = "FLASH_ATTENTION_STRICT"
EMULATED = {"config": "rung:15", "backward_config": "rung:5"}


def shifted(tensor: Tensor) -> Tensor:
    """One element past an aligned address."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return room[1:].view(tensor.shape).copy_(tensor)


def in_columns(tensor: Tensor) -> Tensor:
    """The last dimension is not contiguous."""
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else torch.stack((tensor, tensor), -1)[:, 0]


def with_gaps(tensor: Tensor) -> Tensor:
    """Rows start one element further than the one before ends."""
    return torch.cat((tensor, tensor[..., :1]), -1)[..., :-1]


def expanded(tensor: Tensor) -> Tensor:
    """A first dimension without memory of its own, if all that it holds is the same."""
    same = tensor.ndim > 1 and bool((tensor == tensor[:1]).all())
    return tensor[:1].expand_as(tensor) if same else tensor


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "shifted": shifted,
    "in columns": in_columns,
    "with gaps": with_gaps,
    "expanded": expanded,
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def returning(layout: str) -> saved_tensors_hooks:
    """Hooks that keep copies, and return them in a layout."""
    return saved_tensors_hooks(lambda tensor: tensor.clone(), LAYOUTS[layout])


def gradients_of(given: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    out, lse = attention(*given[:3], **options, return_lse=True)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(t.shape, generator=generator).to(t) for t in (out, lse)]
    return torch.autograd.grad((out, lse), given, weights)


def assert_same(given: list[Tensor], layout: str, **options: Any) -> None:
    """The bits of gradients do not depend on where saved tensors come back."""
    wanted, _ = (gradients_of(given, **options) for _ in range(2))  # the second notes the plan
    with returning(layout):
        found = gradients_of(given, **options)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.stride() == theirs.stride()


def dense(device: str = "cpu", d: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """q, k and v of two sequences, which have the same keys."""
    q, k, v = generate_qkv(2, 24, 4, d, dtype, device, seq_len_k=40, n_heads_k=2)
    return leaves(q, k[:1].expand_as(k).contiguous(), v)


def packed(device: str = "cpu") -> tuple[list[Tensor], dict[str, Any]]:
    q, k, v = (t[0] for t in generate_qkv(1, 30, 4, 64, torch.bfloat16, device))
    sinks = torch.randn(4, device=device)
    bounds = cu_seqlens((11, 19)).to(device)
    lengths = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
    used = torch.tensor([11, 7], dtype=torch.int32, device=device)
    longest = {"max_seqlen_q": 19, "max_seqlen_k": 19}
    given = leaves(q, k, v, sinks)
    return given, {**lengths, **longest, "seqused_k": used, "sinks": given[3], "causal": True}


@pytest.mark.usefixtures("no_compile")
@every_layout
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_what_a_gpu_could_not_read_is_copied(
    arch: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STRICT, arch)
    assert_same(dense(), layout, causal=True)
    given, options = packed()
    assert_same(given, layout, **options)


@every_layout
def test_the_emulator_reads_the_copies(layout: str) -> None:
    assert_same(dense(dtype=torch.float16, d=128)[:3], layout, **EMULATED)


@pytest.mark.usefixtures("no_compile")
@every_layout
def test_an_operator_copies_too(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "1")
    with FlopCounterMode(display=False):  # which makes the call an operator
        assert_same(dense(), layout)


@pytest.mark.usefixtures("no_compile")
def test_backward_itself_refuses_what_its_caller_can_align(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "1")
    q, k, v = (t.detach() for t in dense(dtype=torch.float16, d=128))
    out, lse = attention(q, k, v, return_lse=True)
    with pytest.raises(UnsupportedError, match="k starts at address"):
        backward("rung:5", out, q, shifted(k), v, out, lse)


@pytest.mark.gpu
@pytest.mark.parametrize("d", [64, 128, 256])
@every_layout
def test_a_gpu_reads_the_copies(layout: str, d: int) -> None:
    assert_same(dense("cuda", d), layout, causal=True, deterministic=True)
    given, options = packed("cuda")
    assert_same(given, layout, **options, deterministic=True)


@pytest.mark.gpu
def test_tensors_come_back_from_the_memory_of_the_cpu() -> None:
    given = dense("cuda")
    of_heads = [t.detach().transpose(1, 2).contiguous().transpose(1, 2) for t in given]
    for each in (given, [t.requires_grad_() for t in of_heads]):
        wanted = gradients_of(each, causal=True, deterministic=True)
        for pinned in (False, True):
            with save_on_cpu(pin_memory=pinned):
                found = gradients_of(each, causal=True, deterministic=True)
            assert all(map(torch.equal, found, wanted))

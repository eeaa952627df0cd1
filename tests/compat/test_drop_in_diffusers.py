# SPDX-License-Identifier: Apache-2.0
"""The flash backends of diffusers after `install`, against its native one."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat import install, uninstall
from tests.test_switch_document import ran_program

if importlib.util.find_spec("diffusers") is None:
    pytest.skip("needs diffusers", allow_module_level=True)

DEVICES = [
    ("cpu", torch.float32, 1e-5),
    pytest.param("cuda", torch.bfloat16, 2e-2, marks=pytest.mark.gpu),
]


@pytest.fixture(autouse=True)
def dispatch() -> Iterator[Any]:
    """The module of diffusers that calls flash-attn. It looks for it when it is imported."""
    install()
    attention_dispatch = importlib.import_module("diffusers.models.attention_dispatch")
    assert attention_dispatch._CAN_USE_FLASH_ATTN
    assert attention_dispatch._CAN_USE_FLASH_ATTN_3
    yield attention_dispatch
    uninstall()


def tensors(device: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 9, 4, 32), (2, 13, 4, 32), (2, 13, 4, 32), (2, 9, 4, 32))
    return [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]


def close(given: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(given, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("backend", ["flash", "flash_varlen", "_flash_3", "_flash_varlen_3"])
def test_backends(
    dispatch: Any, backend: str, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    if (backend, device) == ("_flash_3", "cpu"):
        pytest.skip("diffusers registers it for GPUs alone")
    *qkv, _ = tensors(device, dtype)
    given, wanted = (
        dispatch.dispatch_attention_fn(*qkv, scale=0.3, backend=dispatch.AttentionBackendName(name))
        for name in (backend, "native")
    )
    close(given, wanted, tolerance)


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("backend", ["flash_varlen", "_flash_varlen_3"])
def test_padded_keys(
    dispatch: Any, backend: str, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    *qkv, _ = tensors(device, dtype)
    mask = torch.ones(2, 13, dtype=torch.bool, device=device)
    mask[0, 6:] = False
    given = dispatch.dispatch_attention_fn(
        *qkv, attn_mask=mask, backend=dispatch.AttentionBackendName(backend)
    )
    wanted = dispatch.dispatch_attention_fn(
        *qkv, attn_mask=mask[:, None, None], backend=dispatch.AttentionBackendName.NATIVE
    )
    close(given, wanted, tolerance)


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("causal", [False, True])
def test_passes_of_context_parallel_attention(
    dispatch: Any, causal: bool, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    """What each rank calls: a forward pass with its lse, and a backward pass from both."""
    if "lse.permute" not in inspect.getsource(dispatch._flash_attention_backward_op):
        pytest.skip("this diffusers passes lse in a layout that flash-attn does not take either")
    q, k, v, do = tensors(device, dtype)
    if causal:  # torch aligns a causal mask of other shapes to the top left
        k, v = k[:, :9].contiguous(), v[:, :9].contiguous()
    saved: list[Any] = []
    ctx = SimpleNamespace(save_for_backward=lambda *kept: saved.extend(kept))
    out, lse = dispatch._flash_attention_forward_op(
        ctx, q, k, v, is_causal=causal, scale=0.3, return_lse=True
    )
    ctx.saved_tensors = saved
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    native = dispatch.AttentionBackendName.NATIVE
    wanted = dispatch.dispatch_attention_fn(*leaves, is_causal=causal, scale=0.3, backend=native)
    wanted.backward(do)
    close(out, wanted.detach(), tolerance)
    scores = torch.einsum("bqhd,bkhd->bqhk", q.float(), k.float()) * 0.3
    if causal:
        later = torch.ones(9, 9, dtype=torch.bool, device=device).triu(1)
        scores = scores.masked_fill(later[:, None], -torch.inf)
    close(lse, scores.logsumexp(-1), tolerance)
    gradients = dispatch._flash_attention_backward_op(ctx, do)
    for given, leaf in zip(gradients, leaves, strict=True):
        assert leaf.grad is not None
        close(given, leaf.grad, tolerance)


def test_the_document_switches_its_backend(
    dispatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ran_program("from diffusers")
    q, k, v = (found[name] for name in "qkv")
    native = dispatch.AttentionBackendName.NATIVE
    close(found["out"], dispatch.dispatch_attention_fn(q, k, v, backend=native), 2e-2)
    assert "('flash_attn', " in capsys.readouterr().out

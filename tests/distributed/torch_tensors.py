# SPDX-License-Identifier: Apache-2.0
"""DTensors, and torch's own context_parallel, on ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel

import flash_attention
from flash_attention import UnsupportedError
from flash_attention.distributed import attention, serve_context_parallel


def _drawn(*shape: int) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=drawn) for _ in range(4)]


def _close(mine: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


def dtensors(rank: int, ranks: int) -> str:
    """DTensors of lengths that ranks do not divide, on meshes of one and of two dimensions."""
    shapes = [(ranks,), (ranks // 2, 2)] if ranks % 2 == 0 else [(ranks,)]
    for shape in shapes:
        mesh = init_device_mesh("cpu", shape)
        *whole, do = _drawn(2, 29, 4, 8)
        leaves = [t.requires_grad_() for t in whole]
        wanted = flash_attention.attention(*leaves, causal=True)
        gradients = torch.autograd.grad(wanted, leaves, do)
        placements = [Shard(1)] * mesh.ndim
        q, k, v = (distribute_tensor(t.detach(), mesh, placements).requires_grad_() for t in leaves)
        out, lse = attention(q, k, v, mesh, causal=True, schedule="ring", return_lse=True)
        assert isinstance(out, DTensor)
        assert isinstance(lse, DTensor)
        assert out.placements == tuple(placements)
        _close(out.full_tensor(), wanted)
        _close(
            lse.full_tensor(), flash_attention.attention(*leaves, causal=True, return_lse=True)[1]
        )
        found = torch.autograd.grad(out, [q, k, v], distribute_tensor(do, mesh, placements))
        for mine, its in zip(found, gradients, strict=True):
            assert isinstance(mine, DTensor)
            _close(mine.full_tensor(), its)
        q, k, v = (distribute_tensor(t.detach(), mesh, [Shard(2)] * mesh.ndim) for t in leaves)
        with pytest.raises(UnsupportedError, match=r"pass one with Shard\(1\)"):
            attention(q, k, v, mesh)
    return ""


def in_context_parallel(rank: int, ranks: int) -> str:
    """scaled_dot_product_attention inside of torch's context_parallel."""
    mesh = init_device_mesh("cpu", (ranks,))
    for causal in (False, True):
        q, k, v, do = _drawn(2, 4, 24, 8)
        leaves = [t.requires_grad_() for t in (q, k, v)]
        wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        results = [wanted.detach(), *torch.autograd.grad(wanted, leaves, do)]
        buffers = [t.detach().clone() for t in (*leaves, do, *results)]
        with (
            context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * len(buffers)),
            serve_context_parallel(strict=True) as routed,
        ):
            q, k, v = (t.clone().requires_grad_() for t in buffers[:3])
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            found = [out, *torch.autograd.grad(out, [q, k, v], buffers[3].clone())]
            assert out.shape[2] == 24 // ranks
            for mine, its in zip(found, buffers[4:], strict=True):
                _close(mine, its)
            assert (routed.here, dict(routed.to_torch)) == (1, {})
            with pytest.raises(UnsupportedError, match="attn_mask is given"):
                F.scaled_dot_product_attention(
                    q, k, v, attn_mask=torch.ones(1, 1, q.shape[2], 1) > 0
                )
    return ""

# SPDX-License-Identifier: Apache-2.0
"""Problems with tangents, and how far the results of a kernel are from those of float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.call.dtype import DType
from flash_attention.call.tangent_call import TangentCall, WithTangent
from flash_attention.families.sm90.tangent.config import HopperTangentKernelConfig
from flash_attention.reference.composite import attention_by_composition
from flash_attention.reference.judge import ERROR_FACTOR, LSE_ATOL

USUAL = HopperTangentKernelConfig(*(DType.BF16, 64, 2, 96, 2), rescale_threshold=8, group_mib=32)
"""What is chosen for bfloat16 and head dimensions up to 64."""


@dataclass(frozen=True)
class TangentCase:
    """A problem of random tensors."""

    name: str
    seq_q: int
    seq_k: int
    d_head: int = 64
    d_v: int = 0  # 0: as d_head
    batch: int = 1
    heads: int = 1
    heads_k: int = 1
    dtype: torch.dtype = torch.bfloat16
    causal: bool = False
    window: tuple[int, int] | None = None
    softmax_scale: float | None = None
    softcap: float = 0.0

    def __str__(self) -> str:
        return self.name

    def make(self, device: str = "cpu") -> TangentCall:
        """The problem, with normally distributed tensors and tangents."""
        generator = torch.Generator().manual_seed(0)

        def draw(rows: int, heads: int, columns: int) -> Tensor:
            drawn = torch.randn(self.batch, rows, heads, columns, generator=generator)
            return drawn.to(self.dtype).to(device)

        of_q = (self.seq_q, self.heads, self.d_head)
        of_k = (self.seq_k, self.heads_k, self.d_head)
        of_v = (self.seq_k, self.heads_k, self.d_v or self.d_head)
        q, k, v, *tangents = (draw(*shape) for shape in 2 * (of_q, of_k, of_v))
        keywords: dict[str, Any] = {
            name: getattr(self, name) for name in ("causal", "window", "softmax_scale", "softcap")
        }
        return TangentCall(Call(q, k, v, **keywords), *tangents)


def by_composition(asked: TangentCall, precision: torch.dtype) -> WithTangent:
    """The results by torch's own forward mode, with every step rounded to `precision`."""
    call, *tangents = asked
    primals, directions = (
        tuple(t.to(precision) for t in tensors) for tensors in (call[:3], tangents)
    )

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return attention_by_composition(call._replace(q=q, k=k, v=v), precision)

    jvp: Any = torch.func.jvp
    results, of_results = jvp(attend, primals, directions)
    return WithTangent(*results, *of_results)


def assert_right(asked: TangentCall, found: WithTangent) -> None:
    """Compare with float64: results may be off by as much as 16-bit torch, times a factor."""
    exact = by_composition(asked, torch.float64)
    rounded = by_composition(asked, asked.call.q.dtype)
    for name in ("o", "o_tangent"):
        wanted = getattr(exact, name)
        allowed = ERROR_FACTOR * (getattr(rounded, name).double() - wanted).abs().max() + 1e-5
        error = (getattr(found, name).double() - wanted).abs().max()
        assert error <= allowed, f"{name} is off by {error}, allowed is {allowed}"
    seen = exact.lse != -torch.inf
    assert torch.equal(found.lse != -torch.inf, seen)
    for name in ("lse", "lse_tangent"):
        wanted, got = (getattr(each, name)[seen].double() for each in (exact, found))
        atol = LSE_ATOL * max(1.0, float(wanted.abs().max()))  # terms of large sums cancel
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=atol)
    assert torch.all(found.lse_tangent[~seen] == 0)

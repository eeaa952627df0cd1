# SPDX-License-Identifier: Apache-2.0
"""Backward passes for tests: tensors, their forward pass, and NaN where no kernel may look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flash_attention.call.backward_call import ALL, BackwardCall, Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.kernel_configs import parse_kernel_config
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention.reference.judge import cu_seqlens


def config(
    d_head: int = 128,
    *,
    dtype: str = "BF16",
    stages: int = 2,
    dq: str = "own_warpgroup",
    ds: int = 2,
    derivative: str = "rounded",
    schedule: str = "in_place",
    order: str = "grouped_8",
    tile: str = "",
    k: str = "shared",
) -> Any:
    """A config by the words of its short form, with the tile of its d_head unless one is given."""
    tile = tile or ("128, 128" if d_head <= 64 else "64, 128" if d_head <= 128 else "64, 64")
    in_registers = "+k_in_registers" if k == "registers" else ""
    return parse_kernel_config(
        f"hopper_backward({dtype}, {d_head}, {tile}, {stages}):"
        f" dq_{dq}+ds_{ds}+{derivative}+{schedule}+{order}{in_registers}"
    )


class Case:
    """One backward pass, and the judge of its gradients."""

    def __init__(
        self,
        q_lengths: int | Sequence[int],
        k_lengths: int | Sequence[int] | None = None,
        *,
        batch: int = 1,
        heads: tuple[int, int] = (1, 1),
        d: tuple[int, int] = (128, 128),
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cpu",
        used: Sequence[int] | None = None,
        wanted: Wanted = ALL,
        deterministic: bool = False,
        **keywords: Any,
    ) -> None:
        """Sequences of a length each are packed, with rows of NaN after the last one."""
        torch.manual_seed(0)
        k_lengths = q_lengths if k_lengths is None else k_lengths
        q_rows, of_q = _rows(q_lengths, batch, "q", device)
        k_rows, of_k = _rows(k_lengths, batch, "k", device)
        keywords |= of_q | of_k
        if used is not None:
            keywords["seqused_k"] = torch.tensor(used, dtype=torch.int32, device=device)

        def drawn(rows: tuple[int, ...], count: int, columns: int) -> Tensor:
            return torch.randn(*rows, count, columns, device=device).to(dtype)

        q, do = drawn(q_rows, heads[0], d[0]), drawn(q_rows, heads[0], d[1])
        k, v = drawn(k_rows, heads[1], d[0]), drawn(k_rows, heads[1], d[1])
        call = Call(q, k, v, **keywords)
        self.judge = GradientJudge(call, do, wanted=wanted)
        out, lse = evaluate(call, torch.float32, lse=True)
        for tensor, lengths in ((q, q_lengths), (do, q_lengths), (k, k_lengths), (v, k_lengths)):
            if not isinstance(lengths, int):
                tensor[sum(lengths) :] = math.nan
        for i, count in enumerate(used or ()):
            for tensor in (k, v):
                if isinstance(k_lengths, int):
                    tensor[i, count:] = math.nan
                else:
                    first = sum(k_lengths[:i])
                    tensor[first + count : first + k_lengths[i]] = math.nan
        call = call._replace(out=out.to(dtype))
        self.call = BackwardCall(do, call, lse, None, wanted, deterministic)

    def check(self, gradients: Gradients) -> None:
        """Assert that the gradients are right, and that they are those that were wanted."""
        given = [name for name, each in gradients._asdict().items() if each is not None]
        asked = [name for name, each in self.call.wanted._asdict().items() if each]
        assert given == asked
        for name, check in self.judge.check(gradients).items():
            assert check.ok, f"{name}: {check}"


def _rows(
    lengths: int | Sequence[int], batch: int, name: str, device: str
) -> tuple[tuple[int, ...], dict[str, Any]]:
    if isinstance(lengths, int):
        return (batch, lengths), {}
    keywords = {
        f"cu_seqlens_{name}": cu_seqlens(lengths, device),
        f"max_seqlen_{name}": max(lengths),
    }
    return (sum(lengths) + 3,), keywords

# SPDX-License-Identifier: Apache-2.0
"""Calls that ask for more than plain attention, and how their results are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.call.call import Call
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Emulation
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import check_lse, check_output, cu_seqlens

Lengths = int | tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One call. A tuple of lengths makes a packed tensor; others have `batch` entries."""

    name: str
    seq_q: Lengths
    seq_k: Lengths
    d_qk: int = 64
    d_v: int = 64
    heads: int = 4
    heads_k: int = 2
    batch: int = 1
    used: tuple[int, ...] | None = None  # keys that count; NaN lies behind them
    padding: int = 0  # rows of a packed q that are no entry's
    sinks: bool = False
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    softmax_scale: float | None = None

    def make(
        self, device: str = "cpu", dtype: torch.dtype = torch.bfloat16, seed: int = 0
    ) -> MadeCase:
        """The case with random tensors."""
        generator = torch.Generator().manual_seed(seed)

        def draw(lengths: Lengths, heads: int, d: int, padding: int = 0) -> Tensor:
            rows = (self.batch, lengths) if isinstance(lengths, int) else (sum(lengths) + padding,)
            drawn = torch.randn(*rows, heads, d, generator=generator, dtype=torch.float64)
            return drawn.to(device, dtype)

        q = draw(self.seq_q, self.heads, self.d_qk, self.padding)
        k = draw(self.seq_k, self.heads_k, self.d_qk)
        v = draw(self.seq_k, self.heads_k, self.d_v)
        sinks = torch.randn(self.heads, generator=generator).to(device) if self.sinks else None
        keywords: dict[str, Any] = {
            "causal": self.causal,
            "window": self.window,
            "softcap": self.softcap,
            "softmax_scale": self.softmax_scale,
            "dropout_p": self.dropout_p,
            "sinks": sinks,
        }
        if self.dropout_p:
            state = torch.randint((1 << 63) - 1, (2,), generator=generator)
            keywords["rng_state"] = state.to(device)
        longest = {}
        for of, lengths in (("q", self.seq_q), ("k", self.seq_k)):
            if not isinstance(lengths, int):
                keywords[f"cu_seqlens_{of}"] = cu_seqlens(lengths, device)
                longest[f"max_seqlen_{of}"] = max(lengths)
        if self.used is not None:
            keywords["seqused_k"] = torch.tensor(self.used, dtype=torch.int32, device=device)
            for tensor in (k, v):
                self._poison(tensor, self.used)
        return MadeCase(self, q, k, v, keywords, longest)

    def _poison(self, tensor: Tensor, used: tuple[int, ...]) -> None:
        entries = tensor if isinstance(self.seq_k, int) else tensor.split(list(self.seq_k))
        for entry, count in zip(entries, used, strict=True):
            entry[count:] = torch.nan


@dataclass(frozen=True)
class MadeCase:
    """The tensors of a case, and the arguments that go with them."""

    case: Case
    q: Tensor
    k: Tensor
    v: Tensor
    keywords: dict[str, Any]  # what a reference is told
    longest: dict[str, int]  # and what only a kernel wants to know

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `attention`, `forward` and `emulate`."""
        return self.keywords | self.longest

    def call(self, **more: Any) -> Call:
        """The call of the case; `more` are other fields of it."""
        return Call(self.q, self.k, self.v, **{**self.arguments, **more})

    def assert_right(self, out: Tensor, lse: Tensor | None = None) -> None:
        """Within the tolerance of 16-bit attention, rows of no entry left out of account."""
        rows = self.q.shape[-3] - self.case.padding
        q = self.q[:rows] if self.q.ndim == 3 else self.q
        out = out[:rows] if out.ndim == 3 else out
        check = check_output(out, q, self.k, self.v, **self.keywords)
        assert check.ok, str(check)
        if lse is not None:
            seen = check_lse(lse[..., :rows], q, self.k, **self.keywords)
            assert seen.ok, str(seen)


def selected(made: MadeCase, arch: str = "sm_90") -> KernelConfig:
    """The config that the case would get on an architecture."""
    return Plan(made.call(), arch=ARCHES[arch]).config


def emulated(made: MadeCase, config: KernelConfig, schedule: str = "lockstep") -> Emulation:
    """The case on the emulator, where nothing may be found."""
    result = emulate(
        config, made.q, made.k, made.v, return_lse=True, schedule=schedule, **made.arguments
    )
    assert list(map(str, result.findings)) == []
    return result


CASES = [
    Case("a window to the left", 150, 200, window=(20, -1)),
    Case("a window to the right", 150, 200, window=(None, 10)),
    Case("a window to both sides", 150, 200, window=(20, 30), batch=2, heads=2),
    Case("a window wider than the keys", 150, 200, window=(500, 500)),
    Case("a window of the own place, queries before the first key", 200, 90, window=(0, 0)),
    Case("a causal window, d 128", 150, 200, 128, 128, window=(20, 7), causal=True),
    Case("a causal softcap", 150, 200, causal=True, softcap=5.0),
    Case("a softcap and a scale", 130, 170, softcap=2.0, softmax_scale=0.5),
    Case("sinks", 100, 130, sinks=True),
    Case("sinks of rows without a key", 200, 90, causal=True, sinks=True),
    Case("d 40", 100, 130, 40, 40),
    Case("d 24 and d_v 64", 100, 130, 24),
    Case("d 72 and d_v 40, causal", 100, 130, 72, 40, causal=True),
    Case("d 80", 100, 130, 80, 80),
    Case("d 136", 100, 130, 136, 136, heads=2),
    Case("d 200 and d_v 136 in a window", 100, 130, 200, 136, heads=2, window=(30, 5)),
    Case("packed", (100, 0, 130, 64, 1), (100, 30, 0, 200, 1)),
    Case("packed, causal, with sinks", (100, 0, 130), (120, 30, 0), causal=True, sinks=True),
    Case("packed, d 128, rows of no entry", (10, 0, 200), (5, 0, 150), 128, 128, padding=20),
    Case("packed keys that count in part", (60, 70), (100, 150), used=(0, 131), causal=True),
    Case("packed queries of a cache", (100, 1, 130), 150, batch=3, used=(150, 0, 77), causal=True),
    Case(
        "packed queries of a cache, everything at once",
        *((100, 1, 130), 150, 40, 24),
        batch=3,
        used=(150, 1, 77),
        window=(40, 3),
        softcap=7.0,
        sinks=True,
    ),
    Case("queries of a cache", 70, 150, batch=2, used=(150, 3), causal=True),
    Case("one query of a cache", 1, 300, batch=3, used=(300, 129, 0)),
    Case("packed keys", 70, (100, 0), batch=2),
]

LONG = [
    Case("full", 1000, 333, 128, 128, 8, 2, batch=2),
    Case("causal", 1000, 1500, 128, 128, 4, 4, batch=2, causal=True, sinks=True),
    Case("causal, rows without a key", 1000, 333, 128, 128, 4, 1, causal=True),
    Case("a window", 1000, 1000, 120, 104, 4, 2, window=(100, 30), softcap=20.0),
    Case("packed", (700, 0, 1, 129), (600, 10, 900, 0), 128, 128, causal=True, padding=7),
    Case("a cache", 300, 2000, 128, 128, batch=3, used=(2000, 31, 0), causal=True),
]
"""Calls that are for a GPU alone."""

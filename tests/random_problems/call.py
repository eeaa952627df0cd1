# SPDX-License-Identifier: Apache-2.0
"""The tensors of a random problem, its call on a GPU or the emulator, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.arch import ARCHES
from flash_attention.call.call import Call
from flash_attention.kernel_configs import DType, KernelConfig
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import Judge, check_lse, cu_seqlens
from tests.decode_cases import FAR, in_pages, shuffled_table
from tests.random_problems.problem import Lengths, RandomProblem

GUARD = 7.0  # what lies around a guarded output
ROUNDINGS = 4  # of the largest value: of its weight and of the output, and as many again
"""Where scores are large, 16-bit torch is far off, and its error no measure of ours."""
RISE = 40.0  # how much a score grows from the first key to the last


@dataclass(frozen=True)
class RandomCall:
    """Arguments of `attention`, and those of the reference."""

    problem: RandomProblem
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor | None
    room: Tensor | None  # the memory that `out` is part of
    keywords: dict[str, Any]
    rows: slice  # of a packed q, those of an entry
    reference: tuple[Tensor, Tensor, Tensor]  # q, k and v
    reference_keywords: dict[str, Any]

    def config(self) -> KernelConfig | None:
        """An sm_80 kernel if the problem wants it; None: let `attention` select."""
        if self.problem.family == "sm90":
            return None
        return self._plan(None, "sm_80").config

    def plan(self) -> Plan:
        """The kernels of the call, on whatever device the tensors are."""
        return self._plan(self.config(), "sm_90" if self.problem.family == "sm90" else "sm_80")

    def _plan(self, config: KernelConfig | None, arch: str) -> Plan:
        given = None if self.q.is_cuda and (config or arch == "sm_90") else ARCHES[arch]
        return Plan(self._call(), config, given)

    def _call(self) -> Call:
        return Call(self.q, self.k, self.v, self.out, **self.keywords)

    def run(self) -> tuple[Tensor, Tensor | None]:
        """Output and log-sum-exp: on a GPU those of `attention`, on the CPU of the emulator."""
        if self.q.is_cuda:
            config = self.config()
            given = attention(self.q, self.k, self.v, out=self.out, config=config, **self.keywords)
        else:
            given = self.plan().run(self._call())
        return given if isinstance(given, tuple) else (given, None)

    def run_by_torch(self) -> tuple[Tensor, Tensor | None]:
        """`attention` of CPU tensors without a kernel."""
        given = attention(self.q, self.k, self.v, out=self.out, **self.keywords)
        return given if isinstance(given, tuple) else (given, None)

    def judge(self, out: Tensor, lse: Tensor | None) -> Verdict:
        """Hold results to the rules of `flash_attention.reference.judge`, and to `ROUNDINGS`."""
        wrong = self._misplaced(out, lse)
        q, k, v = self.reference
        if wrong or not q.numel():
            return Verdict(0.0, 0.0, wrong)
        mine = out[self.rows] if out.ndim == 3 else out
        check = Judge(q, k, v, **self.reference_keywords).check(mine)
        largest = float(v.nan_to_num().abs().max()) if v.numel() else 0.0
        explained = ROUNDINGS * torch.finfo(v.dtype).eps / 2 * largest
        allowed = min(check.allowed, explained)
        share = check.error / allowed if allowed else math.inf if check.error else 0.0
        if not check.ok:
            wrong.append(f"output: {check}")
        elif not check.error <= explained:
            wrong.append(f"output: {check}, and roundings explain no more than {explained:.3e}")
        lse_share = 0.0
        if lse is not None:
            seen = check_lse(lse[..., self.rows], q, k, **self.reference_keywords)
            lse_share = seen.error / seen.allowed
            if not seen.ok:
                wrong.append(f"lse: {seen}")
        return Verdict(share, lse_share, wrong)

    def _misplaced(self, out: Tensor, lse: Tensor | None) -> list[str]:
        """Results that are not where they belong."""
        wrong = []
        if self.out is not None and out is not self.out:
            wrong.append("place: the result is not the out that was given")
        if (lse is not None) != self.problem.return_lse:
            wrong.append(f"place: return_lse={self.problem.return_lse}, and lse is {lse}")
        if self.room is not None and self.out is not None:
            inside = self.out.clone()
            self.out.fill_(GUARD)
            touched = int((self.room != GUARD).sum())
            self.out.copy_(inside)
            if touched:
                wrong.append(f"place: {touched} elements around out were written")
        return wrong


@dataclass(frozen=True)
class Verdict:
    """Errors as shares of what is allowed, and what is wrong, each beginning with "word:"."""

    share: float
    lse_share: float
    wrong: list[str]


def verdict_of(call: RandomCall) -> Verdict:
    """Run a call and judge it; on a GPU, where orders vary, a second run must give the same."""
    out, lse = call.run()
    verdict = call.judge(out, lse)
    if call.q.is_cuda:
        first = out.clone()
        again, lse_again = call.run()
        rows = call.rows if out.ndim == 3 else slice(None)
        pair = [t[..., call.rows] for t in (lse, lse_again) if t is not None]
        if not torch.equal(again[rows], first[rows]) or (pair and not torch.equal(*pair)):
            verdict.wrong.append("second run: it gives other bits")
    return verdict


def make(problem: RandomProblem, device: str = "cpu") -> RandomCall:
    """The tensors of a problem."""
    q, k, v = _memory(problem, device)
    _fill(problem, q, k, v)
    keywords: dict[str, Any] = {
        "causal": problem.causal,
        "window": problem.window,
        "softcap": problem.softcap,
        "softmax_scale": problem.softmax_scale,
    }
    if problem.sinks:
        generator = torch.Generator().manual_seed(problem.seed)
        keywords["sinks"] = torch.randn(problem.heads, generator=generator).to(device)
    of_kernel: dict[str, Any] = {
        "return_lse": problem.return_lse,
        "split_keys": problem.split_keys,
    }
    told = dict(keywords)
    rows, reference_q = slice(None), q
    for of, lengths in (("q", problem.seq_q), ("k", problem.seq_k)):
        if not isinstance(lengths, int):
            starts = cu_seqlens(lengths, device)
            keywords[f"cu_seqlens_{of}"] = starts + problem.spare
            told[f"cu_seqlens_{of}"] = starts + (problem.spare if of == "k" else 0)
            of_kernel[f"max_seqlen_{of}"] = max(lengths)
            if of == "q":
                rows = slice(problem.spare, problem.spare + sum(lengths))
                reference_q = q[rows]
    reference = (reference_q, k, v)
    if problem.used is not None:
        used = torch.tensor(problem.used, dtype=torch.int32, device=device)
        keywords["seqused_k"] = told["seqused_k"] = used
        if problem.page:
            table = shuffled_table(k.shape[0], k.shape[1] // problem.page, device)
            k, v = (_paged(problem, t, table) for t in (k, v))
            for row, count in zip(table, problem.used, strict=True):
                row[-(-count // problem.page) :] = FAR
            of_kernel["block_table"] = table
    out, room = _output(problem, q)
    return RandomCall(*(problem, q, k, v, out, room, keywords | of_kernel, rows, reference, told))


def _paged(problem: RandomProblem, tensor: Tensor, table: Tensor) -> Tensor:
    """In pages; heads that share memory still do."""
    if problem.layout == "expanded":
        one = in_pages(tensor[:, :, :1], table, problem.page)
        return one.expand(-1, -1, problem.heads_k, -1)
    return in_pages(tensor, table, problem.page)


def _rows(problem: RandomProblem, lengths: Lengths) -> tuple[int, ...]:
    """The dimensions of a tensor before those of heads and columns."""
    if isinstance(lengths, int):
        return problem.batch, lengths
    return (sum(lengths) + 2 * problem.spare,)


def _memory(problem: RandomProblem, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in the problem's layout, everything NaN."""
    dtype = DType.from_string(problem.dtype).to_torch_dtype()
    rows_q, rows_k = (_rows(problem, lengths) for lengths in (problem.seq_q, problem.seq_k))
    heads, heads_k, d, d_v = problem.heads, problem.heads_k, problem.d, problem.d_v

    def nan(*shape: int) -> Tensor:
        return torch.full(shape, math.nan, dtype=dtype, device=device)

    def laid_out(rows: Sequence[int], heads: int, columns: int, shared: bool) -> Tensor:
        *batch, length = rows
        if problem.layout == "heads first":
            return nan(*batch, heads, length, columns).transpose(-2, -3)
        if problem.layout == "gaps":
            return nan(*batch, 2 * length + 1, heads + 1, columns + 8)[..., 1::2, 1:, 8:]
        if problem.layout == "expanded" and shared:
            return nan(*rows, 1, columns).expand(*rows, heads, columns)
        return nan(*rows, heads, columns)

    if problem.layout == "fused":
        if rows_q == rows_k:
            fused = nan(*rows_q, heads * d + heads_k * (d + d_v))
            q, k, v = fused.split([heads * d, heads_k * d, heads_k * d_v], dim=-1)
            columns = ((q, heads, d), (k, heads_k, d), (v, heads_k, d_v))
            q, k, v = (t.unflatten(-1, (n, width)) for t, n, width in columns)
            return q, k, v
        k, v = nan(*rows_k, heads_k, d + d_v).split([d, d_v], dim=-1)
        return nan(*rows_q, heads, d), k, v
    return (
        laid_out(rows_q, heads, d, shared=False),
        laid_out(rows_k, heads_k, d, shared=True),
        laid_out(rows_k, heads_k, d_v, shared=True),
    )


def _fill(problem: RandomProblem, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Random values where an entry is, NaN elsewhere."""
    generator = torch.Generator(q.device).manual_seed(problem.seed)

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, device=like.device)

    values = [normal(t) for t in (q, k, v)]
    values = _valued(problem, generator, *values)
    shared = problem.layout == "expanded"
    for tensor, drawn, lengths in zip(
        (q, k, v), values, (problem.seq_q, problem.seq_k, problem.seq_k), strict=True
    ):
        if tensor is not q and shared:
            tensor, drawn = tensor[..., :1, :], drawn[..., :1, :]
        if isinstance(lengths, int):
            tensor.copy_(drawn)
        else:
            rows = slice(problem.spare, problem.spare + sum(lengths))
            tensor[rows] = drawn[rows].to(tensor.dtype)
        if tensor is not q and problem.used is not None:
            _forget(problem, tensor)


def _forget(problem: RandomProblem, tensor: Tensor) -> None:
    """NaN behind the keys that count."""
    assert problem.used is not None
    start = problem.spare
    for entry, (length, count) in enumerate(zip(problem.lengths_k, problem.used, strict=True)):
        if isinstance(problem.seq_k, int):
            tensor[entry, count:] = math.nan
        else:
            tensor[start + count : start + length] = math.nan
            start += length


def _valued(
    problem: RandomProblem, generator: torch.Generator, q: Tensor, k: Tensor, v: Tensor
) -> list[Tensor]:
    """Normally distributed values made what the problem says."""
    if problem.values == "large":
        return [3 * q, 3 * k, 30 * v]
    if problem.values == "tiny":
        return [q / 256, k / 256, v / 256]
    if problem.values == "outliers":
        rare = [
            torch.rand(t.shape, generator=generator, device=t.device) < 0.002 for t in (q, k, v)
        ]
        return [torch.where(r, 20 * t, t) for r, t in zip(rare, (q, k, v), strict=True)]
    if problem.values == "shifted":
        return [q + 1, k + 2, v + 5]
    if problem.values in ("rising", "falling"):
        place = torch.linspace(0, 1, k.shape[-3], device=k.device)
        place = place if problem.values == "rising" else 1 - place
        scale = problem.softmax_scale or problem.d**-0.5
        strength = (RISE / scale / problem.d) ** 0.5  # of every column, in q and at the last key
        return [q + strength, k + strength * place[:, None, None], v]
    return [q, k, v]


def _output(problem: RandomProblem, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Where the result goes if the call says so, and the memory around it."""
    if problem.out == "new":
        return None, None
    *batch, rows, heads, _ = q.shape
    if problem.out == "given":
        shape = (*batch, rows, heads, problem.d_v)
        return torch.full(shape, math.nan, dtype=q.dtype, device=q.device), None
    shape = (*batch, rows + 2, heads + 2, problem.d_v + 16)
    room = torch.full(shape, GUARD, dtype=q.dtype, device=q.device)
    out = room[..., 1:-1, 1:-1, 8:-8]
    return out.fill_(math.nan), room

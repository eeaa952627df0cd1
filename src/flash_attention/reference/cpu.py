# SPDX-License-Identifier: Apache-2.0
"""Attention on CPU tensors by torch's own operations: any floating dtype, in float32 at least."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flash_attention.call import options as option_checks
from flash_attention.call import tensors as checks
from flash_attention.call.call import Extras, Options
from flash_attention.call.lengths import check_lengths
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import Packing, TensorView
from flash_attention.choose.decision import new_output
from flash_attention.errors import UnsupportedError
from flash_attention.launch.plan import fill_keyless

SCORES = 1 << 24  # scores that are held at a time


def attention_on_cpu(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, options: Options, extras: Extras
) -> tuple[Tensor, Tensor | None]:
    """The output, stored in `out` if given, and the log-sum-exp if asked for.

    The lengths of batch entries are checked, which costs nothing here.
    """
    problem = _checked(q, k, v, out, options, extras)
    precision = torch.promote_types(q.dtype, torch.float32)
    with torch.no_grad():
        if extras.block_table is not None and not problem.idle:
            k, v = (gathered(tensor, extras.block_table) for tensor in (k, v))
        result = new_output(q, problem.d_v).zero_()
        lse = None
        if options.return_lse:
            lse = fill_keyless(torch.empty(problem.lse_shape, dtype=torch.float32), extras.sinks)
        for entry in _entries(problem, q, k, v, result, lse, extras):
            _compute(problem, precision, extras.sinks, *entry)
        if out is None:
            return result, lse
        with torch.inference_mode(out.is_inference()):
            return out.copy_(result), lse


def _checked(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, options: Options, extras: Extras
) -> Problem:
    option_checks.check_options(options)
    views = [TensorView.of(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    for view in views:
        if not view.dtype.is_floating_point:
            raise UnsupportedError(
                f"{view.name} is {view.dtype}; allowed on the CPU is any floating-point dtype"
            )
    checks.check_shapes(views[0], views[1], views[2], Packing.of(extras))
    option_checks.check_extras(extras, options, views[0], views[1])
    if out is not None:
        output = TensorView.of("o", out)
        checks.check_given_output(output, views[0], views[2])
        checks.check_no_overlap(output, views)
    given = (q, k, v, out, extras.sinks)
    checks.check_no_grad(any(t is not None and t.requires_grad for t in given))
    problem = Problem.from_tensors(q, k, v, options=options, extras=extras)
    check_lengths(problem, extras)
    return problem


def gathered(tensor: Tensor, table: Tensor) -> Tensor:
    """(batch, seq, heads, d) of a tensor in pages; beyond the keys of an entry a table may name
    pages that are not there."""
    return tensor[table.long().clamp(0, len(tensor) - 1)].flatten(1, 2)


Entry = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""q, k, v, output and log-sum-exp of batch entries of one length, with a batch dimension."""


def _entries(
    problem: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor | None,
    extras: Extras,
) -> list[Entry]:
    """The parts of the call that have a query and a key; what is beyond a length is left out."""
    if problem.idle:
        return []
    if not problem.per_batch:
        return [(q, k, v, output, lse)]
    entries: list[Entry] = []
    q_rows = _rows(q, extras.cu_seqlens_q)
    k_rows = _rows(k, extras.cu_seqlens_k)
    if extras.seqused_k is not None:
        used = extras.seqused_k.tolist()
        k_rows = [
            (batch, slice(rows.start, rows.start + n))
            for (batch, rows), n in zip(k_rows, used, strict=True)
        ]
    for (q_batch, queries), (k_batch, keys) in zip(q_rows, k_rows, strict=True):
        if queries.start == queries.stop or keys.start == keys.stop:
            continue
        queried, stored = (t[q_batch][queries][None] for t in (q, output))
        some_k, some_v = (t[k_batch][keys][None] for t in (k, v))
        logarithms = None if lse is None else lse[q_batch][..., queries][None]
        entries.append((queried, some_k, some_v, stored, logarithms))
    return entries


def _rows(tensor: Tensor, cu_seqlens: Tensor | None) -> list[tuple[int | slice, slice]]:
    """Where the entries of a tensor are: along its batch dimension, if it has one, and its rows."""
    if cu_seqlens is None:
        return [(batch, slice(0, tensor.shape[1])) for batch in range(tensor.shape[0])]
    return [(slice(None), slice(first, end)) for first, end in pairwise(cu_seqlens.tolist())]


def _compute(
    problem: Problem,
    precision: torch.dtype,
    sinks: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor | None,
) -> None:
    """Fill in the output and the log-sum-exp of (batch, seq, heads, d) tensors."""
    q, k, v = (t.transpose(1, 2).to(precision) for t in (q, k, v))
    output = output.transpose(1, 2)
    if lse is None and sinks is None and not problem.softcap:
        output.copy_(_by_torch(problem, q, k, v))
        return
    step = max(1, SCORES // (q.shape[0] * q.shape[1] * k.shape[2]))
    k, v = (t.repeat_interleave(problem.heads_per_kv, dim=1) for t in (k, v))
    for first in range(0, q.shape[2], step):
        rows = slice(first, min(first + step, q.shape[2]))
        scores = problem.softmax_scale * q[:, :, rows] @ k.transpose(2, 3)
        if problem.softcap:
            scores = problem.softcap * torch.tanh(scores / problem.softcap)
        seen = _seen(problem, q.shape[2], k.shape[2], rows)
        if seen is not None:
            scores.masked_fill_(~seen, -torch.inf)
        sums = scores.logsumexp(dim=-1, keepdim=True)
        if sinks is not None:
            sums = torch.logaddexp(sums, sinks.to(precision)[:, None, None])
        if lse is not None:
            lse[:, :, rows] = sums[..., 0]
        weights = torch.exp(scores - sums.masked_fill(sums == -torch.inf, 0))
        output[:, :, rows] = (weights @ v).to(output.dtype)


def _by_torch(problem: Problem, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's attention of (batch, heads, seq, d) tensors, where it is defined as ours is."""
    queries, keys = q.shape[2], k.shape[2]
    is_causal = problem.causal and queries == keys
    seen = None if is_causal else _seen(problem, queries, keys, slice(0, queries))
    output = scaled_dot_product_attention(
        *(q, k, v, seen),
        is_causal=is_causal,
        scale=problem.softmax_scale,
        enable_gqa=problem.heads_per_kv > 1,
    )
    return output if seen is None else output.masked_fill_(~seen.any(-1, keepdim=True), 0)


def _seen(problem: Problem, queries: int, keys: int, rows: slice) -> Tensor | None:
    """Which of the keys each of some rows sees; None if all do."""
    if problem.causal:
        left, right = keys, 0
    elif problem.window is not None:
        left, right = problem.window
    else:
        return None
    place = torch.arange(rows.start, rows.stop)[:, None] + keys - queries
    key = torch.arange(keys)
    return (key >= place - left) & (key <= place + right)

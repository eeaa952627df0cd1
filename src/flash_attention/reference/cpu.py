# SPDX-License-Identifier: Apache-2.0
"""Attention on CPU tensors with operations of torch, in float32 or better."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from flash_attention.call import options, tensors
from flash_attention.call.call import Call
from flash_attention.call.checks import views_of
from flash_attention.call.lengths import check_lengths
from flash_attention.call.problem import Problem
from flash_attention.call.results import E4M3, fill_keyless, new_output, precision_of_lse
from flash_attention.call.tensors import Packing
from flash_attention.errors import UnsupportedError
from flash_attention.reference.formula import dequantised, evaluate, max_scores, without_pages

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, E4M3)


def attention_on_cpu(call: Call) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute a call. Returns the output, the log-sum-exp or None, and the maxima or None.

    The lengths of sequences are always checked.
    """
    problem = checked_on_cpu(call)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        result, lse = _computed(problem, call)
        maxima = None
        if call.return_max:
            maxima = max_scores(call, precision_of_lse(call.q.dtype))
        if call.out is None:
            return result, lse, maxima
        with torch.inference_mode(call.out.is_inference()):
            call.out.detach().copy_(result)  # which may be a leaf that requires grad
            return call.out, lse, maxima


def checked_on_cpu(call: Call) -> Problem:
    """Check a call of CPU tensors, with its output if it is given, and return its problem."""
    problem = check_on_cpu(call)
    if call.out is not None:
        *inputs, out = views_of(call)
        tensors.check_given_output(out, inputs[0], inputs[2])
        tensors.check_no_overlap(out, inputs)
    return problem


def check_on_cpu(call: Call) -> Problem:
    """Check a call of CPU tensors, whatever its output, and return its problem."""
    options.check_options(call)
    views = views_of(call)[:3]
    for view in views:
        tensors.check_not_bytes(view)
        if view.dtype not in DTYPES:
            raise UnsupportedError(
                f"{view.name} is {view.dtype}; allowed on the CPU are"
                f" {', '.join(map(str, DTYPES))}: convert it with {view.name}.to(torch.bfloat16)"
            )
    q, k, v = views
    tensors.check_shapes(q, k, v, Packing.of(call))
    options.check_extras(call, q, k)
    tensors.check_no_grad(call)
    problem = Problem.of(call)
    check_lengths(problem, call)
    return problem


def _computed(problem: Problem, call: Call) -> tuple[Tensor, Tensor | None]:
    result = new_output(call.q, problem.d_v, dtype=problem.out_dtype)
    lse, precision = None, precision_of_lse(call.q.dtype)
    if call.return_lse:
        lse = torch.empty(problem.lse_shape, dtype=precision, device="cpu")
    if problem.idle:
        return result.zero_(), None if lse is None else fill_keyless(lse, call.sinks)
    if lse is None and not (
        problem.per_batch
        or problem.softcap
        or problem.sinks
        or problem.dropout_p
        or problem.program is not None
    ):
        return result.copy_(_by_torch(problem, call, precision)), None
    output, logarithms = evaluate(call, precision, lse=lse is not None)
    return result.copy_(output), None if lse is None else lse.copy_(logarithms)


def _by_torch(problem: Problem, call: Call, precision: torch.dtype) -> Tensor:
    """Compute with torch's scaled_dot_product_attention, which gives the same result here."""
    call = dequantised(without_pages(call), precision)
    q, k, v = (t.transpose(1, 2).to(precision) for t in call[:3])
    is_causal = problem.causal and problem.seq_q == problem.seq_k
    seen = None if is_causal else _seen(problem)
    output = scaled_dot_product_attention(
        *(q, k, v, seen),
        is_causal=is_causal,
        scale=problem.softmax_scale,
        enable_gqa=problem.heads_per_kv > 1,
    )
    if seen is not None:
        output.masked_fill_(~seen.any(-1, keepdim=True), 0)
    return output.transpose(1, 2)


def _seen(problem: Problem) -> Tensor | None:
    """Return the mask of the keys that each query sees, or None if it sees all."""
    if problem.causal:
        left, right = problem.seq_k, 0
    elif problem.window is not None:
        left, right = problem.window
    else:
        return None
    position = torch.arange(problem.seq_q, device="cpu")[:, None] + problem.seq_k - problem.seq_q
    key = torch.arange(problem.seq_k, device="cpu")
    return (key >= position - left) & (key <= position + right)

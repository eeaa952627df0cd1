# SPDX-License-Identifier: Apache-2.0
"""check: are the results and gradients of `attention` right, by how much, where are they worst."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flash_attention.attention import Arguments, attention, read_arguments
from flash_attention.call.call import Call, with_keywords_of
from flash_attention.call.lengths import check_lengths
from flash_attention.call.options import check_switch
from flash_attention.call.problem import Problem
from flash_attention.call.results import fill_keyless, new_output
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.families.gradients import check_differentiable
from flash_attention.families.padding import naming_padding, needs_padding, padded
from flash_attention.launch.plans import plan_for
from flash_attention.reference.cpu import attention_on_cpu
from flash_attention.reference.formula import without_pages
from flash_attention.reference.gradient_judge import CHECKED_SCORES as GRADIENT_SCORES
from flash_attention.reference.judge import ERROR_FACTOR, Check, LseCheck
from flash_attention.reference.part_judge import CHECKED_SCORES, PartJudge
from flash_attention_workbench.gradient_check import GradientReport, check_gradients
from flash_attention_workbench.tangent_check import (
    TangentReport,
    check_tangents,
    results_with_tangents,
    with_random_tangents,
)
from flash_attention_workbench.text import ReportRow, aligned

CPU_SCORES = 1 << 26  # scores that the oracle computes on a CPU, which takes seconds
BY_TORCH = "torch on the CPU; a config, or emulate=True, has a kernel emulated instead"
BACKWARD_BY_TORCH = BY_TORCH.replace("a config", "a backward_config")


@dataclass(frozen=True)
class CheckReport:
    """The errors of a call's results against the float64 oracle, and whether they pass."""

    problem: Problem  # the shapes, the element type, the mask and the scale
    computed_by: str  # the kernel's config, or torch
    heads: tuple[int, ...]  # the checked heads; the others may not contain NaN
    output: Check  # the error of the output
    lse: LseCheck | None  # the error of the lse, with return_lse
    gradients: GradientReport | None = None  # with gradients=True
    max_scores: LseCheck | None = None  # the error of the maxima, with return_max
    tangents: TangentReport | None = None  # with tangents=True

    @property
    def ok(self) -> bool:
        """Whether all results pass."""
        parts = (self.output, self.lse, self.max_scores, self.gradients, self.tangents)
        return all(part is None or part.ok for part in parts)

    def rows(self) -> list[ReportRow]:
        """The text of the report."""
        output, dtype = self.output, str(self.problem.dtype).removeprefix("torch.")
        count = f"{len(self.heads)} of {self.problem.heads} heads"
        whole = len(self.heads) == self.problem.heads
        rows = [
            ("problem", str(self.problem)),
            ("computed by", self.computed_by),
            ("checked", "every head" if whole else f"{count}: {', '.join(map(str, self.heads))}"),
            ("output", _told(output, dtype)),
            (
                "allowed",
                f"{output.allowed:.3e}: {ERROR_FACTOR} times the error of torch in {dtype}, and"
                " one rounding step",
            ),
            ("worst", f"{output.value:.6g} at {output.worst_index}, exact is {output.exact:.6g}"),
            *([] if output.ok else [("mismatched", output.mismatches)]),
        ]
        for name, check in (("lse", self.lse), ("maxima", self.max_scores)):
            if check is not None:
                error = f"largest error {check.error:.3e} at {check.worst_index}"
                allowed = f"allowed is {check.allowed:.3e}"
                rows.append((name, f"{_verdict(check.ok)}: {error}, {allowed}"))
        checks = {} if self.tangents is None else self.tangents.checks
        rows += [(name, _told_in_full(check, dtype)) for name, check in checks.items()]
        if self.gradients is not None:
            again = ", deterministic" if self.gradients.deterministic else ""
            rows.append(("gradients by", f"{self.gradients.computed_by}{again}"))
            checks = self.gradients.checks
            rows += [(name, _told_in_full(check, dtype)) for name, check in checks.items()]
        return rows

    def __str__(self) -> str:
        return aligned(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """What `str` tells, for scripts."""
        return {
            **asdict(self),
            "problem": self.problem.described,
            "ratio": self.output.ratio,
            "ok": self.ok,
        }


def _verdict(ok: bool) -> str:
    return "right" if ok else "WRONG"


def _told(check: Check, dtype: str) -> str:
    return (
        f"{_verdict(check.ok)}: largest error {check.error:.3e}, that of torch in {dtype} is"
        f" {check.reference_error:.3e}, ratio {check.ratio:.2f}"
    )


def _told_in_full(check: Check, dtype: str) -> str:
    return _told(check, dtype) + ("" if check.ok else f"; {check.mismatches}")


@with_keywords_of(attention)
def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    emulate: bool = False,
    gradients: bool = False,
    tangents: bool = False,
    **keywords: Any,
) -> CheckReport:
    """Compute `attention` of these arguments and check the result against a float64 oracle.

    By FlashAttention's rule, the largest error may be twice that of the same formula in the
    tensors' own precision, plus one rounding step. In large problems some heads are checked,
    spread evenly; the others may not contain NaN.

    - `q`, `k`, `v` and the other keywords: as in `attention`. With `return_lse` the lse is checked,
      and with `return_max` the maxima.
    - `emulate`: run the kernel that a GPU would run in the emulator, on CPU tensors. Without it,
      and without a `config`, torch computes on the CPU.
    - `gradients`: run the backward pass for random gradients of the results too, and check the
      gradients of q, k, v and sinks by the same rule. `backward_config` is its `config`.
    - `tangents`: run the call in forward mode, with random tangents of q, k and v, and check the
      tangents of the output and the lse by the same rule. `config` is one for tangents.

    Returns a CheckReport. Raises what `attention` raises.
    """
    told = read_arguments("check", q, k, v, keywords)
    check_switch("emulate", emulate)
    check_switch("gradients", gradients)
    check_switch("tangents", tangents)
    asked = {"gradients": bool(gradients), "tangents": bool(tangents)}
    with naming_padding(told[0]):
        return _checked(told, emulate=bool(emulate), **asked)


def _checked(told: Arguments, *, emulate: bool, gradients: bool, tangents: bool) -> CheckReport:
    call, config, validate, backward = told
    given = call
    is_padded = needs_padding(call.q, call.v)
    if is_padded:
        call = padded(call)
    return_lse = call.return_lse
    if gradients:
        check_differentiable(call)
        q, k, v = (t.detach() for t in call[:3])
        sinks = None if call.sinks is None else call.sinks.detach()
        call = call._replace(q=q, k=k, v=v, sinks=sinks, return_lse=True)
    scores = CPU_SCORES if call.q.is_cpu else GRADIENT_SCORES
    of_tangents, lse, maxima = None, None, None
    if tangents:
        _check_emulated(emulate, call.q)
        moved = with_random_tangents(call)
        found, computed_by = results_with_tangents(
            moved, config, emulate=emulate, by_torch=BY_TORCH
        )
        result, lse, maxima = found.o, found.lse, None
        of_tangents = check_tangents(moved, found, scores=scores)
    else:
        asked = {"validate": validate, "emulate": emulate}
        result, lse, maxima, computed_by = _results(call, config, **asked)
    if result.numel() == 0:
        raise UnsupportedError(
            f"the output has shape {tuple(result.shape)}, no element to check; every dimension must"
            " be at least 1"
        )
    if is_padded and given.out is not None:
        given.out.copy_(result[..., : given.v.shape[-1]])
    judge = _judge(call)
    report = CheckReport(
        Problem.of(call),
        computed_by,
        tuple(judge.heads),
        judge.check(result),
        None if lse is None or not return_lse else judge.check_lse(lse),
        max_scores=None if maxima is None else judge.check_max(maxima),
        tangents=of_tangents,
    )
    if not gradients or lse is None:
        return report
    with torch.no_grad():
        of_gradients = check_gradients(
            *(call._replace(out=result, return_lse=return_lse), lse, backward),
            emulate=emulate,
            scores=scores,
            by_torch=BACKWARD_BY_TORCH,
        )
    return replace(report, gradients=of_gradients)


def _results(
    call: Call, config: GivenConfig | None, *, validate: bool, emulate: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, str]:
    """The output, the lse and the maxima if they are asked for, and what computed them."""
    q = call.q
    if config is None and not emulate and getattr(q, "is_cpu", False):
        return *attention_on_cpu(call), BY_TORCH
    plan = plan_for(call, config)
    _check_emulated(emulate, q)
    if validate:
        check_lengths(plan.problem, call)
    where = "the emulator" if q.is_cpu else torch.cuda.get_device_name(q.device)
    return *_by_kernel(call, config), f"{plan.config.short_form()}, on {where}"


def _check_emulated(emulate: bool, q: Tensor) -> None:
    if emulate and not q.is_cpu:
        raise UnsupportedError(
            f"emulate=True, and q is on {q.device}; the emulator takes CPU tensors, move them with"
            " q.cpu(), or leave emulate out"
        )


def _by_kernel(
    call: Call, config: GivenConfig | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The output, the lse and the maxima; what the kernel does not store is NaN."""
    out = new_output(call.q, call.v.shape[-1]) if call.out is None else call.out
    call = call._replace(out=out)
    plan = plan_for(call, config)
    with torch.no_grad():
        out.fill_(math.nan)
    result = plan.run(call)
    out, *others = (result,) if isinstance(result, Tensor) else result
    maxima = others.pop() if call.return_max else None
    lse = others[0] if others else None
    if call.cu_seqlens_q is None:
        return out, lse, maxima
    return *_without_loose_rows(out, lse, call.cu_seqlens_q, call.sinks), maxima


def _without_loose_rows(
    out: Tensor, lse: Tensor | None, cu_seqlens_q: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Copies in which the rows of no sequence, that nobody stores, are as the oracle has them."""
    row = torch.arange(len(out), device=out.device)
    loose = (row < cu_seqlens_q[0]) | (row >= cu_seqlens_q[-1])
    if lse is not None:
        lse = torch.where(loose, fill_keyless(torch.empty_like(lse), sinks), lse)
    return out.masked_fill(loose[:, None, None], 0), lse


def _judge(call: Call) -> PartJudge:
    call = without_pages(call)
    scores = CPU_SCORES if call.q.is_cpu else CHECKED_SCORES
    return PartJudge(call.q, call.k, call.v, scores=scores, **call.keywords())

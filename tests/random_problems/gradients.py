# SPDX-License-Identifier: Apache-2.0
"""The backward passes of random problems: what they are asked, their run and the verdict.

Whatever belongs to no sequence is NaN: rows of do, o and lse as well as those of q, k and v.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.call.backward_call import BackwardCall, BackwardProblem, Gradients, Wanted
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_called
from flash_attention.launch.device import device_arch
from flash_attention.launch.plan import Plan
from flash_attention.reference.formula import evaluate
from flash_attention.reference.gradient_judge import GradientJudge
from flash_attention_workbench.gradient_check import gradients_over_nan
from tests.random_problems.call import RandomCall, make
from tests.random_problems.draw import Size, draw
from tests.random_problems.problem import FEATURES, OUTPUTS, RandomProblem, without

NO_GRADIENTS = frozenset(("pages", "split_keys", *(f"output {name}" for name in OUTPUTS[1:])))
GRADIENT_FEATURES = frozenset(FEATURES) - NO_GRADIENTS
SMALL = Size("small gradients", 90, 2, 2, 1 << 13, 10, (1, 2, 3, 4))
WANTED = (*(Wanted(),) * 5, Wanted(dq=False), Wanted(dk=False, dv=False), Wanted(dv=False))


@dataclass(frozen=True)
class GradientProblem:
    """A random problem, the gradients that are wanted of it, and whether bits have to repeat."""

    problem: RandomProblem
    wanted: Wanted = WANTED[0]
    deterministic: bool = False

    @property
    def family(self) -> str:
        return self.problem.family

    def features(self) -> frozenset[str]:
        """What the problem has beyond plain attention and all gradients."""
        own = {
            "deterministic": self.deterministic,
            "gradient of lse": self.problem.return_lse,
            "not every gradient": not all(self.wanted[:3]),
        }
        return self.problem.features() | {name for name, has in own.items() if has}


def draw_gradients(seed: int, size: Size, family: str = "sm90") -> GradientProblem:
    """The backward pass of a seed. What is wanted goes with what decides about the kernel, so that
    many problems share few kernels."""
    problem = without(draw(seed, size, family), NO_GRADIENTS)
    random = Random(f"{problem.dtype} {problem.group} {problem.softcap > 0} {problem.causal}")
    wanted = random.choice(WANTED)._replace(dsinks=problem.sinks)
    return GradientProblem(problem, wanted, deterministic=random.random() < 0.4)


@dataclass(frozen=True)
class RandomGradients:
    """A backward call and the plan that runs it."""

    asked: GradientProblem
    call: BackwardCall
    plan: Plan

    def run(self) -> Gradients:
        """The gradients: by kernels on a GPU, on the CPU by the emulator."""
        return gradients_over_nan(self.plan, self.call)

    def judge(self, gradients: Gradients) -> GradientVerdict:
        """Hold gradients to the rule of GradientJudge."""
        given = {name: gradient is not None for name, gradient in gradients._asdict().items()}
        if given != self.call.wanted._asdict():
            return GradientVerdict({}, [f"wanted: {self.call.wanted}, given are {given}"])
        judge = GradientJudge(self.call.call, self.call.do, self.call.dlse, self.call.wanted)
        checks = judge.check(gradients)
        shares = {
            name: check.error / check.allowed if check.allowed else math.inf * (check.error > 0)
            for name, check in checks.items()
            if check.ok
        }
        wrong = [f"{name}: {check}" for name, check in checks.items() if not check.ok]
        return GradientVerdict(shares, wrong)


@dataclass(frozen=True)
class GradientVerdict:
    """Errors as shares of what is allowed, and what is wrong, each beginning with "word:"."""

    shares: dict[str, float]
    wrong: list[str]


def gradient_verdict_of(made: RandomGradients) -> GradientVerdict:
    """Run a backward pass and judge it. On a GPU a deterministic one must repeat its bits."""
    gradients = made.run()
    verdict = made.judge(gradients)
    if made.call.do.is_cuda and made.asked.deterministic:
        pairs = zip(gradients, made.run(), strict=True)
        if not all(torch.equal(a, b) for a, b in pairs if a is not None and b is not None):
            verdict.wrong.append("second run: it gives other bits")
    return verdict


def make_gradients(asked: GradientProblem, device: str = "cpu") -> RandomGradients:
    """The tensors of a backward pass, and its plan."""
    made = make(replace(asked.problem, return_lse=True), device)
    keywords = {name: value for name, value in made.keywords.items() if name != "split_keys"}
    call = Call(made.q, made.k, made.v, **keywords)
    out, lse = evaluate(call, torch.float64, lse=True)
    out, lse = out.to(call.q.dtype), lse.float()
    generator = torch.Generator(device).manual_seed(asked.problem.seed + 1)
    do = _like(asked.problem.layout, out)
    do.copy_(torch.randn(out.shape, generator=generator, device=device))
    dlse = None
    if asked.problem.return_lse:
        dlse = torch.randn(lse.shape, generator=generator, device=device)
    rows = [t for t in (lse, dlse) if t is not None]
    _forget_loose(made, (out, do), rows)
    forward = call._replace(out=out)
    backward = BackwardCall(do, forward, lse, dlse, asked.wanted, asked.deterministic)
    arch = device_arch(0) if device == "cuda" else ARCHES[_ARCHES[asked.problem.family]]
    return RandomGradients(asked, backward, Plan(backward, _config(backward, asked), arch))


_ARCHES = {"sm80": "sm_80", "sm90": "sm_90"}


def _like(layout: str, out: Tensor) -> Tensor:
    """Memory for the gradient of an output, in a layout that autograd may hand over."""
    *batch, rows, heads, columns = out.shape
    if layout == "heads first":
        return out.new_empty((*batch, heads, rows, columns)).transpose(-2, -3)
    if layout == "gaps":
        return out.new_full((*batch, rows, heads + 1, columns + 8), math.nan)[..., 1:, 8:]
    return out.new_empty(out.shape)


def _forget_loose(made: RandomCall, of_rows: Sequence[Tensor], of_heads: Sequence[Tensor]) -> None:
    """NaN where packed rows belong to no sequence."""
    if isinstance(made.problem.seq_q, int):
        return
    for loose in (slice(None, made.rows.start), slice(made.rows.stop, None)):
        for tensor in of_rows:
            tensor[loose] = math.nan
        for tensor in of_heads:
            tensor[..., loose] = math.nan


def _config(call: BackwardCall, asked: GradientProblem) -> KernelConfig | None:
    """An sm_80 kernel if the problem wants it; None lets the plan choose."""
    if asked.problem.family != "sm80" or not call.do.is_cuda:
        return None
    problem, _ = check_call(call.call)
    given = BackwardProblem.of_pass(problem, asked.wanted, asked.deterministic)
    config = family_called("sm80", Pass.BACKWARD).heuristic(given, device_arch(0))
    assert isinstance(config, KernelConfig), config
    return config

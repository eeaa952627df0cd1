# SPDX-License-Identifier: Apache-2.0
"""The backward pass of a call: its kernels, its memory, and whether its bits repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from flash_attention.call.backward_call import ALL, BackwardProblem, Wanted
from flash_attention.call.backward_checks import views_of_pass
from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.choose.rules import choose
from flash_attention.families.backward_args import SEMAPHORE_ROWS, key_rows, stat_rows
from flash_attention.families.config import KernelConfig
from flash_attention.families.recipe import WORKSPACE_VARIABLE, Setting, workspace_bytes
from flash_attention.kernel_configs import config_for
from flash_attention.ops import BackwardOptions
from flash_attention_workbench.explain.launch import Launch
from flash_attention_workbench.explain.refusals import Refusal, refusals_of, rule_of

SUMS, TURNS, WORKSPACE = "dq_sum", "dq_semaphore", "ds"
"""Scratch memory. CTAs add to the sums in any order, unless there are turns or a workspace: then
CTAs, or the kernel that reads the workspace, always add in the same order."""
ORDERED = {TURNS, WORKSPACE}
KEY_SUMS = {"dk_sum", "dv_sum"}  # which splits of heads add to as CTAs add to the sums of dq


@dataclass(frozen=True)
class Scratch:
    """Temporary memory of a backward pass, by the name of the argument that has its address."""

    name: str
    num_bytes: int
    formula: str

    def __str__(self) -> str:
        return f"{self.name}: {self.num_bytes:,} bytes, {self.formula}"


@dataclass(frozen=True)
class BackwardExplanation:
    """What the backward pass of a call would do."""

    config: KernelConfig
    rule: str  # what chose the config
    wanted: Wanted  # the gradients that are computed
    deterministic: bool  # asked for by the call, or by torch
    repeats: bool  # whether every run gives the same bits
    refused: tuple[Refusal, ...]  # the kernels that were not chosen, and why
    launches: tuple[Launch, ...]  # in order; empty if there is nothing to compute
    scratch: tuple[Scratch, ...]

    @property
    def extra_bytes(self) -> int:
        """The temporary memory of the pass."""
        return sum(scratch.num_bytes for scratch in self.scratch)

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Return the lines of a report by name."""
        names = ", ".join(name for name, wanted in self.wanted._asdict().items() if wanted)
        return {
            "backward": [self.config.short_form(), f"chosen by {self.rule}", f"computes {names}"],
            "instead of": [f"{refusal.kernels}: {refusal.why}" for refusal in self.refused],
            "launches": self._launches() or ["none: there is nothing to compute"],
            "memory": [
                f"{self.extra_bytes:,} bytes besides the gradients",
                *map(str, self.scratch),
            ],
            "bits": [self._bits()],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return {
            **asdict(self),
            "config": self.config.short_form(),
            "wanted": self.wanted._asdict(),
            "extra_bytes": self.extra_bytes,
        }

    def _launches(self) -> list[str]:
        """Describe each kernel once, in the order of the first launches."""
        lines = []
        for launch, count in Counter(self.launches).items():
            first, *rest = launch.lines()
            lines += [f"{count} times: {first}" if count > 1 else first, *rest]
        return lines

    def _bits(self) -> str:
        if self.deterministic:
            return "the same in every run, as asked for"
        if self.repeats:
            return "the same in every run, asked for or not"
        names = "dq, dk and dv" if any(s.name in KEY_SUMS for s in self.scratch) else "dq"
        order = "whose terms are added in any order"
        return f"may vary between runs in {names}, {order}; pass deterministic"


def explain_backward(
    call: Call,
    problem: Problem,
    views: Sequence[TensorView],
    options: BackwardOptions,
    setting: Setting,
) -> BackwardExplanation:
    """Explain the backward pass of a checked call. `views` are of q, k, v and the output."""
    wanted = _wanted(call)
    deterministic = options.deterministic or torch.are_deterministic_algorithms_enabled()
    given = BackwardProblem.of_pass(problem, wanted, deterministic)
    of_pass = views_of_pass(call, views)
    config = None if options.config is None else config_for(options.config, given, of_pass)
    choice = choose(given, replace(setting, return_lse=False), of_pass, config=config)
    recipe = choice.recipe(given, of_pass)
    return BackwardExplanation(
        config=choice.config,
        rule=rule_of(choice, given),
        wanted=wanted,
        deterministic=deterministic,
        repeats=deterministic
        or SUMS not in recipe.scratch
        or not ORDERED.isdisjoint(recipe.scratch),
        refused=refusals_of(choice, given, of_pass, None),
        launches=()
        if given.idle
        else tuple(Launch.of(step, setting.arch) for step in recipe.steps),
        scratch=tuple(
            Scratch(name, size, _formula(name, given, size, recipe.arguments.key_sums))
            for name, size in recipe.scratch.items()
        ),
    )


def _wanted(call: Call) -> Wanted:
    """The gradients that autograd asks for; all of them if it asks for none."""
    sinks = call.sinks
    if not call.needs_grad():
        return ALL._replace(dsinks=sinks is not None)
    of_sinks = sinks is not None and sinks.requires_grad
    return Wanted(call.q.requires_grad, call.k.requires_grad, call.v.requires_grad, of_sinks)


def _formula(name: str, problem: BackwardProblem, num_bytes: int, key_sums: int) -> str:
    """Say how many bytes an array has, from the sizes of a problem. There are `key_sums` sums of
    dK and of dV."""
    if name in KEY_SUMS:
        heads, of_keys = problem.heads_k, key_rows(problem)
        columns = num_bytes // (4 * key_sums * heads * of_keys)
        each = f"{key_sums} splits x " if key_sums > 1 else ""
        return f"{each}{heads} heads of k x {of_keys:,} rows x {columns} columns x 4"
    rows = stat_rows(problem)
    numbers = f"{problem.heads} heads x {rows:,} rows"
    if name == TURNS:
        return f"{problem.heads} heads x {rows // SEMAPHORE_ROWS:,} blocks of rows x 4"
    columns, rest = divmod(num_bytes, max(1, 4 * problem.heads * rows))
    if rest or name == WORKSPACE:
        most = workspace_bytes() >> 20
        return f"which parts of the work share: at most {most} MiB by {WORKSPACE_VARIABLE}"
    return f"{numbers} x 4" if columns == 1 else f"{numbers} x {columns} columns x 4"

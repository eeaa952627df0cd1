# SPDX-License-Identifier: Apache-2.0
"""Gradients of random problems on the GPU, each held to float64, as a results file:

PYTHONPATH=. python benchmarks/random_gradients.py RESULTS --count 1000 --seed 0 [--first N]

Families and failures are as in benchmarks/random_problems.py. Deterministic passes run twice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.random_problems import (
    SHRINK_TRIES,
    Tally,
    parse,
    problems,
    report,
    run_all,
    verdict_or_error,
)
from flash_attention.compile.unit import Unit
from flash_attention.files import write_record
from flash_attention_workbench.commands.console import progress, quiet_compiles
from flash_attention_workbench.commands.precompile import precompile_units
from flash_attention_workbench.cores import usable_cores
from tests.random_problems.gradients import (
    GradientProblem,
    draw_gradients,
    gradient_verdict_of,
    make_gradients,
)
from tests.random_problems.problem import RandomProblem
from tests.random_problems.shrink import failing_alike, shrink

COUNT = 1000


def units_of(asked: GradientProblem) -> tuple[Unit, ...]:
    """The kernels of a problem; none where it is refused, which is said when it is run."""
    try:
        plan = make_gradients(asked, "cuda").plan
    except Exception:
        return ()
    return () if plan.idle else tuple(step.unit for step in plan.recipe.steps)


def compile_all(todo: Sequence[GradientProblem]) -> int:
    """Fill the compile cache by all cores; how many kernels there are."""
    units = list(dict.fromkeys(unit for asked in todo for unit in units_of(asked)))
    with progress() as bar, quiet_compiles():
        task = bar.add_task("compiling", total=len(units))
        for _ in precompile_units(units, usable_cores()):
            bar.advance(task)
    return len(units)


def wrong_with(asked: GradientProblem, tally: Tally | None = None) -> list[str]:
    """What is wrong with a problem's gradients, or the error it ends with."""
    verdict = verdict_or_error(lambda: gradient_verdict_of(make_gradients(asked, "cuda")))
    if isinstance(verdict, list):
        return verdict
    if tally is not None:
        tally.note(asked, verdict.shares)
    return verdict.wrong


def smallest_alike(asked: GradientProblem, wrong: Sequence[str]) -> GradientProblem:
    """The smallest problem that fails as one did of which `wrong` was said."""

    def alike(problem: RandomProblem) -> list[str]:
        return wrong_with(replace(asked, problem=problem))

    problem = shrink(asked.problem, failing_alike(wrong, alike), SHRINK_TRIES)
    return replace(asked, problem=problem)


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments, __doc__, COUNT)
    if not torch.cuda.is_available():
        sys.exit("random_gradients.py needs an NVIDIA GPU; torch sees none")
    todo = list(problems(draw_gradients, given.seed, given.first, given.count))
    start = time.perf_counter()
    kernels = compile_all(todo)
    tally = Tally()
    run_all(todo, tally, wrong_with, smallest_alike)
    seconds = time.perf_counter() - start
    record = tally.record(("benchmarks/random_gradients.py", *arguments), kernels, seconds)
    write_record(given.results, record | {"worst_gradients": tally.worst})
    report(tally, kernels, seconds)
    return min(len(tally.failures), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

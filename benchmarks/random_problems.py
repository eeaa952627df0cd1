# SPDX-License-Identifier: Apache-2.0
"""Random problems on the GPU, each held to the reference and run twice, as a results file:

PYTHONPATH=. python benchmarks/random_problems.py RESULTS --count 2000 --seed 0 [--first N]

On Hopper every fourth problem is for the first family, elsewhere all are. A problem that fails is
noted, the first ones made as small as they can be, and the run goes on; an error that ends the CUDA
context ends the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flash_attention.arch import ARCHES
from flash_attention.files import write_record
from flash_attention.launch.device import current_arch
from flash_attention.launch.plan import Plan
from flash_attention.tools.bench.environment import describe
from flash_attention.tools.commands.console import (
    add_number_columns,
    output,
    progress,
    quiet_compiles,
    report_table,
)
from flash_attention.tools.commands.precompile import Job, precompile
from flash_attention.tools.cores import usable_cores
from tests.random_problems.call import Verdict, make, verdict_of
from tests.random_problems.draw import LARGE, draw
from tests.random_problems.problem import RandomProblem
from tests.random_problems.shrink import failing_alike, shrink

FIRST_FAMILY_EVERY = 4
PER_SEED = 1_000_000  # numbers of problems between one --seed and the next
SHRUNK, SHRINK_TRIES = 3, 100  # failures that are made small, and what each may cost


class DeadContextError(Exception):
    """Nothing more runs on the GPU in this process."""


@dataclass
class Tally:
    """What was seen so far."""

    families: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    wrong_with: Counter[str] = field(default_factory=Counter)
    worst: dict[str, Any] = field(default_factory=lambda: {"share": 0.0, "problem": None})
    worst_lse: dict[str, Any] = field(default_factory=lambda: {"share": 0.0, "problem": None})
    failures: list[dict[str, str]] = field(default_factory=list)

    def count(self, problem: RandomProblem) -> None:
        self.families[problem.family] += 1
        self.features.update(problem.features())

    def note(self, problem: RandomProblem, verdict: Verdict) -> None:
        for worst, share in ((self.worst, verdict.share), (self.worst_lse, verdict.lse_share)):
            if share > worst["share"]:
                worst.update(share=share, problem=repr(problem))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, help="JSON file to write")
    parser.add_argument("--count", type=int, default=2000, help="how many problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    return parser.parse_args(arguments)


def problems(seed: int, first: int, count: int) -> Iterator[RandomProblem]:
    hopper = current_arch() == ARCHES["sm_90"]
    for number in range(first, first + count):
        family = "sm90" if hopper and (number + 1) % FIRST_FAMILY_EVERY else "sm80"
        yield draw(seed * PER_SEED + number, LARGE, family)


def plan_of(problem: RandomProblem) -> Plan | None:
    """The launch of a problem; None where it is refused, which is said when it is run."""
    try:
        return make(problem, "cuda").plan()
    except Exception:
        return None


def compile_all(todo: Sequence[RandomProblem]) -> int:
    """Fills the compile cache by all cores; how many kernels there are."""
    plans = [plan_of(problem) for problem in todo]
    jobs = {
        Job(plan.config, plan.arch, plan.recipe.features): None
        for plan in plans
        if plan is not None and not plan.idle
    }
    with progress() as bar, quiet_compiles():
        task = bar.add_task("compiling", total=len(jobs))
        for _ in precompile(list(jobs), usable_cores()):
            bar.advance(task)
    return len(jobs)


def wrong_with(problem: RandomProblem, tally: Tally | None = None) -> list[str]:
    """What is wrong with a problem's results, or the error it ends with."""
    try:
        verdict = verdict_of(make(problem, "cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        try:
            torch.cuda.synchronize()
        except Exception as sticky:
            raise DeadContextError(message) from sticky
        return [message]
    if tally is not None:
        tally.note(problem, verdict)
    return verdict.wrong


def run_all(todo: Sequence[RandomProblem]) -> Tally:
    """Every problem; after an error of the GPU itself, no more."""
    tally = Tally()
    with progress() as bar, quiet_compiles():
        task = bar.add_task("running", total=len(todo))
        for problem in todo:
            tally.count(problem)
            try:
                wrong = wrong_with(problem, tally)
                if wrong:
                    tally.wrong_with.update(problem.features())
                    tally.failures.append({"problem": repr(problem), "wrong": "; ".join(wrong)})
                    if len(tally.failures) <= SHRUNK:
                        smallest = shrink(problem, failing_alike(wrong, wrong_with), SHRINK_TRIES)
                        tally.failures[-1]["smallest"] = repr(smallest)
            except DeadContextError as dead:
                why = f"{dead}; the CUDA context is gone, go on with --first"
                tally.failures.append({"problem": repr(problem), "wrong": why})
                break
            bar.advance(task)
    return tally


def report(tally: Tally, kernels: int, seconds: float) -> None:
    for failure in tally.failures:
        print(f"{failure['problem']}\n  {failure['wrong']}")
        if "smallest" in failure:
            print(f"  smallest: {failure['smallest']}")
    table = report_table("feature")
    add_number_columns(table, ("problems", "failures"))
    for name, count in sorted(tally.features.items()):
        table.add_row(name, str(count), str(tally.wrong_with[name]))
    output.print(table)
    done = sum(tally.families.values())
    families = ", ".join(f"{count} {name}" for name, count in sorted(tally.families.items()))
    print(
        f"{done - len(tally.failures)} of {done} right ({families}), {kernels} kernels,"
        f" {seconds:.0f} s; worst error {tally.worst['share']:.0%} of what is allowed, of lse"
        f" {tally.worst_lse['share']:.0%}"
    )


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    if not torch.cuda.is_available():
        sys.exit("random_problems.py needs an NVIDIA GPU; torch sees none")
    todo = list(problems(given.seed, given.first, given.count))
    start = time.perf_counter()
    kernels = compile_all(todo)
    tally = run_all(todo)
    seconds = time.perf_counter() - start
    record = {
        **describe(),
        "command": " ".join(("benchmarks/random_problems.py", *arguments)),
        "count": sum(tally.families.values()),
        "kernels": kernels,
        "seconds": round(seconds, 1),
        "families": dict(sorted(tally.families.items())),
        "features": dict(sorted(tally.features.items())),
        "worst": tally.worst,
        "worst_lse": tally.worst_lse,
        "failures": tally.failures,
    }
    write_record(given.results, record)
    report(tally, kernels, seconds)
    return min(len(tally.failures), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

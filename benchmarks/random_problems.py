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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from flash_attention.arch import ARCHES
from flash_attention.files import write_record
from flash_attention.launch.device import current_arch
from flash_attention.launch.plan import Plan
from flash_attention_workbench.bench.environment import describe
from flash_attention_workbench.commands.console import (
    add_number_columns,
    output,
    progress,
    quiet_compiles,
    report_table,
)
from flash_attention_workbench.commands.precompile import Job, precompile
from flash_attention_workbench.cores import usable_cores
from tests.random_problems.call import make, verdict_of
from tests.random_problems.draw import LARGE, Size, draw
from tests.random_problems.problem import RandomProblem
from tests.random_problems.shrink import failing_alike, shrink

FIRST_FAMILY_EVERY = 4
PER_SEED = 1_000_000  # numbers of problems between one --seed and the next
SHRUNK, SHRINK_TRIES = 3, 100  # failures that are made small, and what each may cost


class DeadContextError(Exception):
    """Nothing more runs on the GPU in this process."""


class Counted(Protocol):
    """A problem of any kind."""

    @property
    def family(self) -> str: ...
    def features(self) -> frozenset[str]: ...


AnyProblem = TypeVar("AnyProblem", bound=Counted)
AnyVerdict = TypeVar("AnyVerdict")


@dataclass
class Tally:
    """What was seen so far."""

    families: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    wrong_with: Counter[str] = field(default_factory=Counter)
    worst: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the result's name
    failures: list[dict[str, str]] = field(default_factory=list)

    def count(self, problem: Counted) -> None:
        self.families[problem.family] += 1
        self.features.update(problem.features())

    def note(self, problem: Counted, shares: Mapping[str, float]) -> None:
        for name, share in shares.items():
            if share >= self.worst.get(name, {"share": 0.0})["share"]:
                self.worst[name] = {"share": share, "problem": repr(problem)}

    def worst_words(self) -> str:
        return ", ".join(f"{name} {worst['share']:.0%}" for name, worst in self.worst.items())

    def record(self, command: Sequence[str], kernels: int, seconds: float) -> dict[str, Any]:
        """What a results file says, but for the worst errors."""
        return {
            **describe(),
            "command": " ".join(command),
            "count": sum(self.families.values()),
            "kernels": kernels,
            "seconds": round(seconds, 1),
            "families": dict(sorted(self.families.items())),
            "features": dict(sorted(self.features.items())),
            "failures": self.failures,
        }


def parse(
    arguments: Sequence[str], description: str | None = __doc__, count: int = 2000
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description and description.splitlines()[0])
    parser.add_argument("results", type=Path, help="JSON file to write")
    parser.add_argument("--count", type=int, default=count, help="how many problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    return parser.parse_args(arguments)


def problems(
    draw: Callable[[int, Size, str], AnyProblem], seed: int, first: int, count: int
) -> Iterator[AnyProblem]:
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
        Job(plan.config, plan.choice.setting.arch, plan.recipe.features): None
        for plan in plans
        if plan is not None and not plan.idle
    }
    with progress() as bar, quiet_compiles():
        task = bar.add_task("compiling", total=len(jobs))
        for _ in precompile(list(jobs), usable_cores()):
            bar.advance(task)
    return len(jobs)


def verdict_or_error(judge: Callable[[], AnyVerdict]) -> AnyVerdict | list[str]:
    """The verdict on a problem, or the error it ends with."""
    try:
        verdict = judge()
        torch.cuda.synchronize()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        try:
            torch.cuda.synchronize()
        except Exception as sticky:
            raise DeadContextError(message) from sticky
        return [message]
    return verdict


def wrong_with(problem: RandomProblem, tally: Tally | None = None) -> list[str]:
    """What is wrong with a problem's results, or the error it ends with."""
    verdict = verdict_or_error(lambda: verdict_of(make(problem, "cuda")))
    if isinstance(verdict, list):
        return verdict
    if tally is not None:
        tally.note(problem, {"output": verdict.share, "lse": verdict.lse_share})
    return verdict.wrong


def smallest_alike(problem: RandomProblem, wrong: Sequence[str]) -> RandomProblem:
    """The smallest problem that fails as one did of which `wrong` was said."""
    return shrink(problem, failing_alike(wrong, wrong_with), SHRINK_TRIES)


def run_all(
    todo: Sequence[AnyProblem],
    tally: Tally,
    wrong_with: Callable[[AnyProblem, Tally], list[str]],
    smallest: Callable[[AnyProblem, Sequence[str]], AnyProblem],
) -> None:
    """Every problem; after an error of the GPU itself, no more."""
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
                        tally.failures[-1]["smallest"] = repr(smallest(problem, wrong))
            except DeadContextError as dead:
                why = f"{dead}; the CUDA context is gone, go on with --first"
                tally.failures.append({"problem": repr(problem), "wrong": why})
                break
            bar.advance(task)


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
        f" {seconds:.0f} s; of what is allowed, the worst errors: {tally.worst_words()}"
    )


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    if not torch.cuda.is_available():
        sys.exit("random_problems.py needs an NVIDIA GPU; torch sees none")
    todo = list(problems(draw, given.seed, given.first, given.count))
    start = time.perf_counter()
    kernels = compile_all(todo)
    tally = Tally()
    run_all(todo, tally, wrong_with, smallest_alike)
    seconds = time.perf_counter() - start
    record = tally.record(("benchmarks/random_problems.py", *arguments), kernels, seconds)
    nothing = {"share": 0.0, "problem": None}
    worst = {"worst": tally.worst.get("output", nothing)}
    write_record(given.results, record | worst | {"worst_lse": tally.worst.get("lse", nothing)})
    report(tally, kernels, seconds)
    return min(len(tally.failures), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

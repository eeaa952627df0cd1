# SPDX-License-Identifier: Apache-2.0
"""The speed of the emulator beside that of another commit, kernel by kernel.

Run: PYTHONPATH=src:. python benchmarks/emulator_speed.py COMMIT [--json FILE] [--only WORDS]

Two processes, one of each commit, run a case in turn. A time is the least CPU time of the rounds,
with PTX that was loaded before. What a run stores, finds and counts is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from flash_attention.files import write_record
from flash_attention_workbench.bench.environment import describe_host

ROOT = Path(__file__).resolve().parent.parent
SCHEDULES = ("lockstep", "depth-first")
COMPARED = ("output", "findings", "counters")


class Worker:
    """A process that runs cases with the packages of a working tree."""

    def __init__(self, tree: Path) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        sources = (tree / "src", *sorted(tree.glob("packages/*/src")), ROOT)
        path = os.pathsep.join(map(str, sources))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.emulator_cases"],
            cwd=ROOT,
            env=os.environ | threads | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.cases: list[str] = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def run(self, case: str, schedule: str) -> tuple[float, list[str]]:
        """CPU seconds of a run, and the digests of what it did."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([case, schedule]) + "\n")
        self._process.stdin.flush()
        seconds, *digests = self._answer()
        return seconds, digests

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run((*git, "add", "--quiet", "--detach", folder, commit), check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run((*git, "remove", "--force", folder), check=True)


def measure(workers: Sequence[Worker], case: str, schedule: str, rounds: int) -> dict[str, Any]:
    """The least times of one case in both processes, and what differed."""
    times: list[list[float]] = [[] for _ in workers]
    digests: list[list[str]] = [[] for _ in workers]
    for _ in range(rounds + 1):
        for which, worker in enumerate(workers):
            seconds, digests[which] = worker.run(case, schedule)
            times[which].append(seconds)
    before, after = (min(found[1:]) for found in times)
    pairs = zip(COMPARED, *digests, strict=True)
    return {
        "case": case,
        "schedule": schedule,
        "before_ms": round(before * 1e3, 3),
        "after_ms": round(after * 1e3, 3),
        "differs": [what for what, old, new in pairs if old != new],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="what is compared with")
    parser.add_argument("--json", help="where the record is written")
    parser.add_argument("--only", nargs="*", default=[""], help="words that name the cases")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        before = stack.enter_context(checked_out(given.commit))
        workers = [Worker(tree) for tree in (before, ROOT)]
        for worker in workers:
            stack.callback(worker.end)
        names = [case for case in workers[1].cases if any(word in case for word in given.only)]
        for schedule in SCHEDULES:
            for case in names:
                rows.append(measure(workers, case, schedule, given.rounds))
                print(_line(rows[-1]), flush=True)
    means = {}
    for schedule in SCHEDULES:
        mine = [row for row in rows if row["schedule"] == schedule]
        means[schedule] = round(geometric_mean(r["before_ms"] / r["after_ms"] for r in mine), 2)
        print(f"{schedule}: {means[schedule]} times as fast, the geometric mean of {len(mine)}")
    if given.json:
        record = {**describe_host(), "before": given.commit, "mean": means, "rows": rows}
        write_record(Path(given.json), record)


def _line(row: dict[str, Any]) -> str:
    ratio = row["before_ms"] / row["after_ms"]
    differs = f"  differs: {', '.join(row['differs'])}" if row["differs"] else ""
    times = f"{row['before_ms']:10.2f}{row['after_ms']:10.2f}{ratio:8.2f}"
    return f"{row['case']:36}{row['schedule']:12}{times}{differs}"


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How many kernels of a folder the emulator can load, and what refuses the others:

python benchmarks/corpus.py FOLDER... [--arch sm_90a] [-I HEADERS] [-D MACRO] [--json FILE]

Every .cu and .ptx file below the folders is compiled, by NVRTC or by nvcc where there is one, and
every entry point of it is loaded; nothing is run. A file that does not compile counts as none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from ptx_emulator.errors import CompileError, EmulatorError, PtxError, RefusedKernelError
from ptx_emulator.program.program import load_program
from ptx_emulator.ptx import parse
from ptx_emulator.user_kernel.compiling import Unit, compile_cuda

SUFFIXES = (".cu", ".ptx")
_OPERANDS = re.compile(r"[%$]\w+|\b0[xX][0-9a-fA-F]+\b|\b\d+\b")


@dataclass
class Outcome:
    """What came of a file, or of all."""

    files: int = 0
    broken: list[str] = field(default_factory=list)  # files that do not compile, and why
    entries: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # entry points by feature
    seconds: float = 0.0

    @property
    def refused(self) -> int:
        return self.refusals.total()

    def add(self, other: Outcome) -> None:
        self.files += other.files
        self.broken += other.broken
        self.entries += other.entries
        self.refusals += other.refusals
        self.seconds += other.seconds


def load_file(path: Path, arch: str, include: Sequence[Path], defines: Sequence[str]) -> Outcome:
    """Compile a file and load every entry point of it."""
    outcome = Outcome(files=1)
    try:
        text = path.read_text(errors="replace")
        if path.suffix == ".cu":
            unit = Unit(text, str(path), arch, [path.parent, *include], defines)
            text = compile_cuda(unit)[0]
        names = list(parse(text))
    except CompileError as error:
        wrong = [line for line in error.log.splitlines() if "error" in line]
        outcome.broken.append(f"{path}: {(wrong or [str(error)])[0].strip()[:160]}")
        return outcome
    except EmulatorError as error:
        outcome.broken.append(f"{path}: {error}")
        return outcome
    start = time.perf_counter()
    for name in names:
        outcome.entries += 1
        try:
            load_program(text, name)
        except EmulatorError as error:
            outcome.refusals[feature(error)] += 1
    outcome.seconds = time.perf_counter() - start
    return outcome


def feature(error: EmulatorError) -> str:
    """What refused a kernel first, without the names and numbers of this kernel."""
    first = error.reasons[0] if isinstance(error, RefusedKernelError) else error
    message = first.message if isinstance(first, PtxError) else str(first)
    return _OPERANDS.sub("_", message)


def files_of(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """The files below each path; a file stands for itself."""
    return {
        path: [path]
        if path.is_file()
        else sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
        for path in paths
    }


def report(name: str, outcome: Outcome) -> None:
    loaded = outcome.entries - outcome.refused
    compiled = outcome.files - len(outcome.broken)
    share = f" ({100 * loaded / outcome.entries:.1f} %)" if outcome.entries else ""
    print(
        f"{name}: {compiled} of {outcome.files} files compile; {loaded} of {outcome.entries} entry"
        f" points load{share}, in {outcome.seconds:.0f} s",
        flush=True,
    )
    for why, count in outcome.refusals.most_common():
        print(f"  {count} refused: {why}")
    for why in outcome.broken:
        print(f"  does not compile: {why}")


def store(file: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write an object for each path, by its name; what else the file says of it stays."""
    record = json.loads(file.read_text()) if file.is_file() else {"repositories": []}
    known = {one["repository"]: one for one in record["repositories"]}
    for name, outcome in outcomes.items():
        before = known.get(name, {"repository": name, "run": 0, "right": 0, "mistakes": []})
        known[name] = {
            **before,
            "files": outcome.files,
            "broken": len(outcome.broken),
            "entries": outcome.entries,
            "refusals": dict(outcome.refusals.most_common()),
        }
    file.write_text(json.dumps({"repositories": list(known.values())}, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="load every kernel below some folders")
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("-I", dest="include", type=Path, action="append", default=[])
    parser.add_argument("-D", dest="defines", action="append", default=[])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    load = partial(load_file, arch=options.arch, include=options.include, defines=options.defines)
    everything, outcomes = Outcome(), dict[str, Outcome]()
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for path, files in files_of(options.paths).items():
            outcome = Outcome()
            for one in pool.map(load, files):
                outcome.add(one)
            report(str(path), outcome)
            outcomes[path.name] = outcome
            everything.add(outcome)
    if options.json is not None:
        store(options.json, outcomes)
    if len(options.paths) > 1:
        report("all", everything)
    return min(everything.refused, 1)


if __name__ == "__main__":
    sys.exit(main())

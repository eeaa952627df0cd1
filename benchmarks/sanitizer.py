# SPDX-License-Identifier: Apache-2.0
"""The tools of compute-sanitizer beside the emulator, on the small kernels of its tests: those with
one mistake each, and those that are right.

PYTHONPATH=. python benchmarks/sanitizer.py RESULTS [--tools memcheck,racecheck] [--seconds 100]

Each tool launches the kernels (`sanitizer_launch.py`) with the arguments that the emulator gets,
compiled from the PTX that the emulator runs. A process launches several, and another one goes on
where it ends. It needs nvcc and compute-sanitizer. What is in RESULTS already is kept, and after
`--seconds` no process is started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from flash_attention.files import write_record
from flash_attention_workbench.bench.environment import describe, output_of
from ptx_emulator import Empty, Tensor, UserKernel
from ptx_emulator.errors import EmulatorError
from ptx_emulator.user_kernel.kernel import three_sizes
from ptx_emulator.user_kernel.nvcc import find_nvcc
from tests.emulator.annotated import Annotated, kernels_in, ptx_of

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("plants", "idioms")
LAUNCH = Path(__file__).with_name("sanitizer_launch.py")
NO_TOOL, TOOLS = "no tool", ("memcheck", "racecheck", "initcheck", "synccheck")
SANITIZER = "compute-sanitizer"
HANGS, ENDLESS = "hangs", "deadlock"
PROCESSES, WAITING = 6, 10  # side by side: more of them wait for the driver, not for the GPU
PATIENCE_S, EACH_S, DEADLOCK_S = 6.0, 1.0, 2  # for a process, for every kernel of it, of racecheck
TOGETHER = 12  # kernels of a process
ALONE = "plants/barriers/no_barrier_between_store_and_load"  # is timed

Outcome = dict[str, Any]
Report = tuple[str, list[str]]  # its headline, and the lines of CUDA text that it names

_KERNEL = re.compile(r"^kernel: \d+\n", re.MULTILINE)
_STATUS = re.compile(r"^launch: (\w+)$", re.MULTILINE)
_REPORT = re.compile(
    r"^========= (?!COMPUTE-SANITIZER|\w+ SUMMARY|Target application|Saved host|and )(\S.*)\n"
    r"(?:=========(?: {2,}.*| and .*|)\n)*",
    re.MULTILINE,
)
_PLACE = re.compile(r" (?:at|by|in) .*| \(.*?\)|\.$")  # what differs from run to run
_NAME, _LINE = re.compile(r"\w+"), re.compile(r"\w+\.cu:\d+")


def description(kernel: Annotated, cubin: Path) -> dict[str, Any]:
    """What `sanitizer_launch.py` has to launch."""
    params = UserKernel.of_ptx(ptx_of(kernel.path), kernel.name).program.kernel.params
    grid, block, smem, cluster = kernel.sizes()
    placed: dict[int, int] = {}  # arrays by their identity
    buffers: list[dict[str, Any]] = []
    arguments: list[dict[str, Any]] = []
    given = list(kernel.values().values())
    for param, value in zip(params, given, strict=True):
        array = value.array if isinstance(value, Tensor) else value
        if not isinstance(array, Empty | np.ndarray):
            arguments.append({"bytes": _number(param.size, value).hex()})
            continue
        if id(array) not in placed:
            placed[id(array)] = len(buffers)
            buffers.append(_buffer(array))
        argument = {"buffer": placed[id(array)]}
        arguments.append({**argument, **(_map(value) if isinstance(value, Tensor) else {})})
    return {
        "cubin": str(cubin),
        "entry": kernel.name,
        "grid": three_sizes("grid", grid),
        "block": three_sizes("block", block),
        "cluster": None if cluster is None else (cluster, 1, 1),
        "smem": smem,
        "buffers": buffers,
        "arguments": arguments,
    }


def _number(size: int, value: float) -> bytes:
    if isinstance(value, float):
        return (np.float32(value) if size == 4 else np.float64(value)).tobytes()
    return int(value).to_bytes(size, "little", signed=value < 0)


def _buffer(array: Any) -> dict[str, Any]:
    if isinstance(array, Empty):
        size = int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize
        return {"size": size, "data": None}
    return {"size": array.nbytes, "data": array.tobytes().hex()}


def _map(value: Tensor) -> dict[str, Any]:
    array = value.array
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.float16
    return {
        "dims": array.shape[::-1],
        "strides": array.strides[-2::-1],
        "box": value.box[::-1],
        "swizzle": value.swizzle,
    }


def prepare(folder: Path, kernels: Sequence[Annotated]) -> dict[str, Path]:
    """Compile the kernels; the description of the launch of each by its name."""
    paths = list({kernel.path: None for kernel in kernels})
    for path in paths:
        cubin_of(path, folder).with_suffix(".ptx").write_text(ptx_of(path))
    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(lambda path: _assemble(cubin_of(path, folder)), paths))
    launches = {}
    for kernel in kernels:
        launches[name_of(kernel)] = folder / f"{kernel.path.parent.name}_{kernel.name}.json"
        text = json.dumps(description(kernel, cubin_of(kernel.path, folder)))
        launches[name_of(kernel)].write_text(text)
    return launches


def cubin_of(path: Path, folder: Path) -> Path:
    return folder / f"{path.parent.name}_{path.stem}.cubin"


def _assemble(cubin: Path) -> None:
    nvcc, ptx = find_nvcc() or "nvcc", cubin.with_suffix(".ptx")
    command = [nvcc, "-arch=sm_90a", "-cubin", "-lineinfo", "-o", str(cubin), str(ptx)]
    subprocess.run(command, check=True, capture_output=True)


def name_of(kernel: Annotated) -> str:
    return f"{kernel.path.parent.name}/{kernel.path.stem}/{kernel.name}"


def command_of(tool: str, launches: Sequence[Path]) -> list[str]:
    options = {
        NO_TOOL: [],
        "racecheck": ["--racecheck-deadlock-timeout", str(1000 * DEADLOCK_S)],
    }.get(tool, [])
    shown = ["--show-backtrace", "device", "--print-limit", "20"]
    sanitizer = [] if tool == NO_TOOL else [SANITIZER, "--tool", tool, *shown, *options]
    return [*sanitizer, sys.executable, str(LAUNCH), *map(str, launches)]


def printed_by(command: Sequence[str], patience: float) -> tuple[str, bool]:
    """What a command prints, and whether it ended in time; it is killed if not."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=patience)[0], True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], False


def launched(tool: str, kernels: Sequence[Annotated], launches: Sequence[Path]) -> list[Outcome]:
    """What a tool says of the first kernels, up to one that the process does not survive."""
    patience = PATIENCE_S + EACH_S * len(kernels)
    printed, ended = printed_by(command_of(tool, launches), patience)
    _, *parts = _KERNEL.split(printed)
    statuses = [found[1] if (found := _STATUS.search(part)) else None for part in parts]
    reports = reports_of(parts, kernels)
    return [
        {
            "said": list(dict.fromkeys(headline for headline, _ in said))[:3],
            "at_line": any(line in places for _, places in said for line in marked(kernel)),
            "status": status or ("no answer" if ended else HANGS),
        }
        for kernel, said, status in zip(kernels, reports, statuses, strict=False)
    ]


def reports_of(parts: Sequence[str], kernels: Sequence[Annotated]) -> list[list[Report]]:
    """The reports by kernel: of the one that a report names, or else of the one that ran."""
    names = {kernel.name: number for number, kernel in enumerate(kernels)}
    found: list[list[Report]] = [[] for _ in parts]
    for running, part in enumerate(parts):
        for match in _REPORT.finditer(part):
            named = [names[word] for word in _NAME.findall(match[0]) if word in names]
            where = min(named[0] if named else running, len(parts) - 1)
            found[where].append((_PLACE.sub("", match[1]).strip(), _LINE.findall(match[0])))
    return found


def marked(kernel: Annotated) -> list[str]:
    return [f"{kernel.path.name}:{line}" for line, _ in kernel.mistakes]


def emulated(kernel: Annotated) -> dict[str, Any]:
    """The same of the emulator, in this process, with its PTX compiled."""
    ptx_of(kernel.path)
    lines = [f"{kernel.path}:{line}" for line, _ in kernel.mistakes]
    start = time.perf_counter()
    try:
        findings = kernel.run()[0].findings
        said = [finding.kind for finding in findings]
        at_line, status = any(finding.user_source in lines for finding in findings), "success"
    except EmulatorError as error:
        said, status = [str(error).splitlines()[0]], "refused"
        at_line = any(line in str(error) for line in lines)
    seconds = round(time.perf_counter() - start, 3)
    said = list(dict.fromkeys(said))
    return {"said": said, "at_line": at_line, "status": status, "seconds": seconds}


def row_of(kernel: Annotated) -> dict[str, Any]:
    ((line, kind),) = kernel.mistakes or ((0, ""),)
    return {"kernel": name_of(kernel), "mistake": kind, "line": line, "tools": {}}


def kernels() -> Iterator[Annotated]:
    for folder in FOLDERS:
        yield from kernels_in(ROOT / "tests" / "emulator" / folder)


def measure(rows: dict[str, dict[str, Any]], tools: Sequence[str], seconds: float) -> None:
    """Fill in what the rows lack. Kernels that never end come last, each in its own process."""
    end = time.monotonic() + seconds

    def fill(tool: str, some: Sequence[Annotated], launches: Mapping[str, Path]) -> None:
        while some and time.monotonic() < end:
            files = [launches[name_of(kernel)] for kernel in some]
            done = launched(tool, some, files)
            last = slice(len(done) - 1, len(done))
            if len(some) > 1 and done and done[-1]["status"] == HANGS:  # or the others were slow
                done[-1:] = launched(tool, some[last], files[last])
            for kernel, outcome in zip(some, done, strict=False):
                rows[name_of(kernel)]["tools"][tool] = outcome
            some = some[max(len(done), 1) :]

    with TemporaryDirectory() as folder:
        launches = prepare(Path(folder), list(kernels()))
        for endless, processes, together in ((False, PROCESSES, TOGETHER), (True, WAITING, 1)):
            with ThreadPoolExecutor(processes) as pool:
                groups = [
                    (tool, group)
                    for tool in tools
                    for group in groups_of(_lacking(rows, tool, endless), together)
                ]
                waiting = [pool.submit(fill, *group, launches) for group in groups]
                for kernel in kernels():
                    if "emulator" not in rows[name_of(kernel)]["tools"]:
                        rows[name_of(kernel)]["tools"]["emulator"] = emulated(kernel)
            for one in waiting:
                one.result()


def _lacking(rows: Mapping[str, Any], tool: str, endless: bool) -> list[Annotated]:
    """The kernels that a tool has not seen, among those that end or among the others."""
    return [
        kernel
        for kernel in kernels()
        if tool not in rows[name_of(kernel)]["tools"]
        and endless == any(kind == ENDLESS for _, kind in kernel.mistakes)
    ]


def groups_of(some: Sequence[Annotated], size: int) -> list[Sequence[Annotated]]:
    return [some[start : start + size] for start in range(0, len(some), size)]


def alone(tools: Sequence[str]) -> dict[str, float]:
    """Seconds of a process with one kernel, the median of three, with nothing beside it."""
    (kernel,) = (kernel for kernel in kernels() if name_of(kernel) == ALONE)
    with TemporaryDirectory() as folder:
        launches = prepare(Path(folder), [kernel])
        emulator = [sys.executable, "-m", "ptx_emulator", str(kernel.path), "--entry", kernel.name]
        commands = {tool: command_of(tool, list(launches.values())) for tool in tools}
        commands["emulator"] = [*emulator, "--grid=1", "--block=64", "--arg=f32:out:64"]
        return {
            tool: median(_seconds(command) for _ in range(3)) for tool, command in commands.items()
        }


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    printed_by(command, PATIENCE_S)
    return round(time.perf_counter() - start, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="compute-sanitizer beside the emulator")
    parser.add_argument("results", type=Path)
    parser.add_argument("--tools", default=",".join((NO_TOOL, *TOOLS)))
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args(arguments)
    rows = {name_of(kernel): row_of(kernel) for kernel in kernels()}
    stored = json.loads(options.results.read_text()) if options.results.exists() else {}
    for row in stored.get("rows", ()):
        if row["kernel"] in rows:
            rows[row["kernel"]]["tools"] = row["tools"]
    tools = options.tools.split(",")
    times = stored.get("alone_s") or alone(tools)
    measure(rows, tools, options.seconds)
    version = re.search(r"Version ([\d.]+)", output_of(SANITIZER, "--version") or "")
    record = {
        **describe(),
        "sanitizer": version[1] if version else None,
        "alone_s": times,
        "rows": list(rows.values()),
    }
    write_record(options.results, record)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Every timing that was ever taken, a JSON line each, so that none is taken again."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flash_attention.arch import Arch
from flash_attention.choose.dense import DenseProblem
from flash_attention.choose.table_file import problem_json
from flash_attention.compile.cache_folder import cache_dir
from flash_attention.errors import UnsupportedError
from flash_attention.files import MAX_BYTES
from flash_attention.kernel_configs import KernelConfig
from flash_attention.records import read_part
from flash_attention_workbench.tune.kernels import kernel_digest
from flash_attention_workbench.tune.measurer import Failure

logger = logging.getLogger("flash_attention")


def default_store() -> Path:
    """The file of timings beside the compiled kernels."""
    return cache_dir() / "timings.jsonl"


@dataclass(frozen=True)
class Machine:
    """What a timing depends on besides the kernel and the problem."""

    device: str
    driver: str
    nvrtc: str
    arch: Arch


@dataclass(frozen=True)
class Sample:
    """The time of a config, and how it compares with the heuristic's in the same turns."""

    ms: float
    relative: float


@dataclass(frozen=True)
class Decision:
    """How the search at a problem ended: the ranking, best first, and whether time ran out."""

    ranking: tuple[str, ...]
    winner: str
    ms: float
    heuristic: str
    heuristic_ms: float
    when: str
    seconds: float  # it was given
    complete: bool
    space: str  # a digest of the kernels it started from


class Store:
    """The lines of one machine in a file, by what they are of; without a path, in memory only."""

    def __init__(self, path: Path | None, machine: Machine) -> None:
        self.path = path
        self.machine = machine
        self._records: dict[tuple[object, ...], dict[str, Any]] = {}
        self._timed: set[tuple[object, ...]] = set()
        self._torn = False  # the last line has no end
        if path is not None and path.exists():
            self._read(path)

    def sample(self, problem: DenseProblem, config: KernelConfig, repeats: int) -> Sample | None:
        """The time of a config, of so many samples."""
        found = self._records.get(self._key("time", problem, config, repeats))
        return read_part(found, Sample) if found else None

    def was_timed(self, problem: DenseProblem, config: KernelConfig) -> bool:
        """Whether there is any time of a config, so that it need not be compiled to be judged."""
        return self._key("time", problem, config)[:-1] in self._timed

    def add_sample(
        self, problem: DenseProblem, config: KernelConfig, repeats: int, sample: Sample
    ) -> None:
        values = {"ms": sample.ms, "relative": round(sample.relative, 5)}
        self._add("time", problem, config, repeats, values)

    def failure(self, problem: DenseProblem, config: KernelConfig) -> Failure | None:
        """Why a config was given up at a problem."""
        found = self._records.get(self._key("failure", problem, config))
        return read_part(found, Failure) if found else None

    def add_failure(self, problem: DenseProblem, config: KernelConfig, failure: Failure) -> None:
        self._add("failure", problem, config, 0, vars(failure))

    def decision(self, problem: DenseProblem, heuristic: KernelConfig) -> Decision | None:
        """How the search at a problem ended the last time."""
        found = self._records.get(self._key("decision", problem, heuristic))
        return read_part(found, Decision) if found else None

    def add_decision(
        self, problem: DenseProblem, heuristic: KernelConfig, decision: Decision
    ) -> None:
        self._add("decision", problem, heuristic, 0, vars(decision))

    def _key(
        self, kind: str, problem: DenseProblem, config: KernelConfig, repeats: int = 0
    ) -> tuple[object, ...]:
        digest = kernel_digest(config, problem.compiled_for(config), self.machine.arch)
        problem_key = json.dumps(problem_json(problem))
        return kind, digest, config.short_form(), problem_key, repeats

    def _add(
        self,
        kind: str,
        problem: DenseProblem,
        config: KernelConfig,
        repeats: int,
        values: dict[str, Any],
    ) -> None:
        key = self._key(kind, problem, config, repeats)
        record = {
            "kind": kind,
            "device": self.machine.device,
            "driver": self.machine.driver,
            "nvrtc": self.machine.nvrtc,
            "source": key[1],
            "config": config.short_form(),
            "problem": problem_json(problem),
            "repeats": repeats,
            **values,
        }
        self._keep(key, record)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self.path, "a") as file:  # one write: lines of two processes do not mix
                file.write("\n" * self._torn + json.dumps(record) + "\n")
            self._torn = False

    def _keep(self, key: tuple[object, ...], record: dict[str, Any]) -> None:
        self._records[key] = record
        if key[0] == "time":
            self._timed.add(key[:-1])

    def _read(self, path: Path) -> None:
        here = (self.machine.device, self.machine.driver, self.machine.nvrtc)
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            wanted = f"a regular file of up to {MAX_BYTES} bytes"
            raise UnsupportedError(f"{path} is no store of timings, which is {wanted}")
        damaged, text = 0, path.read_text(errors="replace")
        self._torn = not text.endswith("\n") and text != ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
                where = tuple(record[name] for name in ("device", "driver", "nvrtc"))
                key = (
                    *(record["kind"], record["source"], record["config"]),
                    *(json.dumps(record["problem"]), record["repeats"]),
                )
                read_part(record, _KINDS[record["kind"]])
                if where == here:
                    self._keep(key, record)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                damaged += 1  # such as the last line of a process that was killed
        if damaged:
            logger.warning("%d lines of %s are no timings and are ignored", damaged, path)


_KINDS: dict[str, type[Sample | Failure | Decision]] = {
    "time": Sample,
    "failure": Failure,
    "decision": Decision,
}

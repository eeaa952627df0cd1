# SPDX-License-Identifier: Apache-2.0
"""Mistakes for the sm_90a attention kernel, what has to catch each, and a way to run them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash_attention.emulator import GlobalMemory, load_program, run
from flash_attention.emulator.errors import DeadlockError
from flash_attention.emulator.machine.findings import Finding
from flash_attention.emulator.machine.machine import Argument
from flash_attention.emulator.machine.tensor_map import TensorMap
from tests.emulator.hopper_attention import THREADS, attention_smem, attention_source
from tests.emulator.hopper_kernels import compile_ptx

Array = NDArray[Any]
NUMBERS = "numbers"  # the output is out of tolerance
DEADLOCK = "deadlock"
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class HopperMutation:
    """A macro of the kernel that plants a bug.

    `silent` bugs leave the output right when warps advance in step: only the finding sees them.
    """

    name: str
    define: str
    caught_by: str
    silent: bool = False
    launches: int = 1


MUTATIONS = (
    HopperMutation("K is not waited for", "NO_FULL_WAIT", "race"),
    HopperMutation("V is released before wgmma has read it", "EARLY_RELEASE", "race", silent=True),
    HopperMutation(
        "O is stored without a proxy fence", "NO_PROXY_FENCE", "missing-proxy-fence", True
    ),
    HopperMutation("S is read while wgmma is in flight", "READ_IN_FLIGHT", "wgmma-in-flight", True),
    HopperMutation("no commit before the wait for S", "NO_WGMMA_COMMIT", "wgmma-in-flight", True),
    HopperMutation("wrong parity at the first empty wait", "EMPTY_PARITY=0", DEADLOCK),
    HopperMutation("64 transaction bytes too many expected", "TX_ERROR=64", DEADLOCK),
    HopperMutation("64 transaction bytes too few expected", "TX_ERROR=-64", "mbarrier-transaction"),
    HopperMutation("the producer never waits for empty", "NO_EMPTY_WAIT", "mbarrier-overflow"),
    HopperMutation("consumers arrive twice at empty", "EMPTY_ARRIVALS=2", DEADLOCK),
    HopperMutation("mbarriers used without a barrier after init", "NO_INIT_SYNC", "race", True),
    HopperMutation(
        "one arrive of a named barrier is missing", "UNBALANCED_NAMED_BARRIER", DEADLOCK
    ),
    HopperMutation("O staging overwritten before it was read", "NO_STORE_WAIT", "race"),
    HopperMutation("the bulk stores of O are not committed", "NO_STORE_COMMIT", "race"),
    HopperMutation("exit before O was read", "NO_FINAL_STORE_WAIT", "bulk-store-unwaited", True),
    HopperMutation("tiles 128 bytes off the swizzle pattern", "K_SHIFT=128", "wgmma-descriptor"),
    HopperMutation("wrong stride in the descriptors", "STRIDE=512", NUMBERS),
    HopperMutation("keys beyond the end are not masked", "UNMASKED_TAIL", NUMBERS),
    HopperMutation(
        "tile counter not reset between launches", "NO_COUNTER_RESET", NUMBERS, launches=2
    ),
)


@dataclass(frozen=True)
class Attempt:
    """What a run gave: the kinds that were found, the message of a deadlock, the errors."""

    findings: list[Finding]
    deadlock: str
    output_error: float
    lse_error: float

    @property
    def kinds(self) -> frozenset[str]:
        found = frozenset(finding.kind for finding in self.findings)
        return found | {DEADLOCK} if self.deadlock else found

    @property
    def output_right(self) -> bool:
        """Within the rounding of a 16-bit output and of P."""
        return self.output_error < 5e-3 and self.lse_error < 1e-5


@dataclass(frozen=True)
class Problem:
    """Attention inputs, [heads, rows, head dimension], and the grid that runs them."""

    head: int = 64
    queries: int = 200
    keys: int = 330
    heads: int = 2
    dtype: str = "f16"
    ctas: int = 2

    def inputs(self) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(7)
        rows = (self.queries, self.keys, self.keys)
        values = (rng.standard_normal((self.heads, r, self.head)) for r in rows)
        q, k, v = (to_words(x.astype(np.float32), self.dtype) for x in values)
        return q, k, v


def to_words(values: Array, dtype: str) -> Array:
    """Float32 values rounded to 16-bit words."""
    if dtype == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    return ((bits + (bits >> 16 & 1) + 0x7FFF) >> 16).astype(np.uint16)


def to_values(words: Array, dtype: str) -> Array:
    """16-bit words as float64."""
    if dtype == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@cache
def reference(problem: Problem) -> tuple[Array, Array]:
    """O and the log-sum-exp of every row, in float64."""
    q, k, v = (to_values(x, problem.dtype) for x in problem.inputs())
    scores = np.einsum("hqd,hkd->hqk", q, k) * problem.head**-0.5
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("hqk,hkd->hqd", weights / total, v), (top + np.log(total))[..., 0]


def attempt(
    problem: Problem,
    *defines: str,
    schedule: str = "lockstep",
    seed: int = 0,
    launches: int = 1,
) -> Attempt:
    """Run the kernel, `launches` times with the same tile counter; the last run counts."""
    source = attention_source(problem.head, problem.dtype)
    program = load_program(compile_ptx(source, *defines))
    memory = GlobalMemory()
    loaded = [memory.alloc(x) for x in problem.inputs()]
    counters = memory.alloc(np.zeros(2, np.int32))
    heads, queries, keys, head = problem.heads, problem.queries, problem.keys, problem.head

    def tensor(address: int, rows: int, box: int) -> TensorMap:
        strides = (head * 2, rows * head * 2)
        return TensorMap(address, (head, rows, heads), strides, (64, box, 1))

    rows = (queries, keys, keys)
    maps = [tensor(address, count, 64) for address, count in zip(loaded, rows, strict=True)]
    findings: list[Finding] = []
    deadlock = ""
    for _ in range(launches):
        output = memory.alloc(nbytes=heads * queries * head * 2)
        lse = memory.alloc(nbytes=heads * queries * 4)
        arguments: list[Argument] = [
            *maps,
            tensor(output, queries, 16),
            lse,
            counters,
            queries,
            keys,
            heads,
        ]
        try:
            findings = run(
                program,
                memory,
                grid=(problem.ctas, 1, 1),
                block=THREADS,
                args=[*arguments, head**-0.5 * LOG2_E],
                dynamic_smem=attention_smem(head),
                schedule=schedule,
                seed=seed,
            ).findings
        except DeadlockError as error:
            deadlock = str(error)
            findings = [item for item in error.findings if isinstance(item, Finding)]
    right_o, right_lse = reference(problem)
    o = to_values(memory.read(output, np.uint16, right_o.shape), problem.dtype)
    errors = (o - right_o, memory.read(lse, np.float32, right_lse.shape) - right_lse)
    worst = (float(np.nan_to_num(np.abs(error), nan=np.inf).max()) for error in errors)
    return Attempt(findings, deadlock, *worst)


def catch(mutation: HopperMutation, schedule: str = "lockstep") -> Attempt:
    """Run the kernel with one mistake."""
    return attempt(Problem(), mutation.define, schedule=schedule, launches=mutation.launches)


def caught(mutation: HopperMutation, seen: Attempt) -> bool:
    """Whether what was named before the run is among what caught the mistake."""
    if mutation.caught_by == NUMBERS:
        return not seen.output_right
    return mutation.caught_by in seen.kinds

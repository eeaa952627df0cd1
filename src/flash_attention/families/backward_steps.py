# SPDX-License-Identifier: Apache-2.0
"""The kernels before and after the main kernel of a backward pass, which all families share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.arch import WARP_SIZE
from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.errors import UnsupportedError
from flash_attention.families.backward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    SEMAPHORE_ROWS,
    STAT_BLOCK,
    key_rows,
    stat_bytes,
)
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.fit import MAX_GRID_X
from flash_attention.families.recipe import Geometry, Grid, Step

ENTRY = "flash_backward"
THREADS = 256
CHUNK = 8  # elements of 16 bytes
ROUNDS = 4  # of rows that a thread of `prepare_step` takes part in
EARLY_LAUNCHES = 90  # from Hopper on, a kernel may start before the previous one has ended
_NAME = re.compile(
    r"(?:backward_)?(prepare|convert_and_add_splits|convert|add_splits|sink_gradient|bias_gradient|hopper_queries|hopper_keys)_(\w+)"
)


@dataclass(frozen=True)
class BackwardStep:
    """A kernel before or after the main kernel of a backward pass. It has no config."""

    kernel: str  # what it does: prepare, convert, and so on
    variant: str  # what it is compiled for


def parse_step_name(name: str) -> BackwardStep | None:
    """Return the step that has a name, or None if it is another kernel's name."""
    found = _NAME.fullmatch(name)
    return BackwardStep(*found.groups()) if found else None


def prepare_step(
    problem: BackwardProblem,
    target: str,
    *,
    sum_columns: int = 0,
    orders_dq: bool = False,
    key_sum_columns: int = 0,
) -> Step:
    """Return the kernel that computes lse_log2 and delta. It clears `sum_columns` columns of
    dq_sum, or dq_semaphore if dQ is added in order, `key_sum_columns` columns of dk_sum and dv_sum,
    and the gradients of rows that belong to no sequence."""
    threads = _row_threads(problem)
    chunks = max(1, -(-problem.d_v // (threads * CHUNK)))
    unit = _unit(
        "prepare",
        f"{_lower(problem)}_{threads * chunks}_{'ordered' if orders_dq else sum_columns}"
        f"{f'_keys_{key_sum_columns}' if key_sum_columns else ''}{_suffix(problem)}",
        target,
        (
            dtype_binding(_dtype(problem)),
            _lengths(problem),
            Number("rows", _prepared_rows(problem)),
            Number("row_threads", threads),
            Number("row_chunks", chunks),
            Number("sum_columns", sum_columns),
            Number("orders_dq", int(orders_dq)),
            Number("key_sum_columns", key_sum_columns),
            Number("starts_next", int(_capability(target) >= EARLY_LAUNCHES)),
        ),
    )
    return Step(unit, Geometry(prepared_blocks(problem), THREADS))


def _row_threads(problem: BackwardProblem) -> int:
    """Return how many threads of `prepare_step` share a row."""
    threads = 1
    while threads * CHUNK < problem.d_v and threads < WARP_SIZE:
        threads *= 2
    return threads


def _prepared_rows(problem: BackwardProblem) -> int:
    """Return the rows of a CTA of `prepare_step`: fewer if they are wide, so that a small problem
    has many CTAs."""
    return min(STAT_BLOCK, ROUNDS * THREADS // _row_threads(problem))


def _capability(target: str) -> int:
    """Return 90 for sm_90a."""
    return int("".join(filter(str.isdigit, target)))


@dataclass(frozen=True)
class Sums:
    """What the main kernel leaves in float32: whether that is dQ, and splits of dK and dV."""

    columns: int
    order: str  # the type of its SumOrder
    dq: bool = True
    splits: bool = False


def sums_steps(problem: BackwardProblem, target: str, sums: Sums) -> tuple[Step, ...]:
    """Return the kernel that converts dq_sum to dq and adds the splits of dk and dv up, if there is
    something to do."""
    grids = sums_grids(problem, sums)
    if not grids:
        return ()
    early = _capability(target) >= EARLY_LAUNCHES
    kernel = "_and_".join(["convert"] * sums.dq + ["add_splits"] * sums.splits)
    unit = _unit(
        kernel,
        f"{_lower(problem)}_{sums.columns}_{sums.order.lower()}{_suffix(problem)}",
        target,
        (
            dtype_binding(_dtype(problem)),
            _lengths(problem),
            Number("rows", STAT_BLOCK),
            Number("sum_columns", sums.columns),
            Variant("SumOrder", "backward/sum_order", sums.order),
            Number("starts_early", int(early)),
        ),
        header="add_splits" if sums.splits else kernel,
    )
    return (Step(unit, Geometry(grids[0], THREADS), starts_early=early),)


def sums_grids(problem: BackwardProblem, sums: Sums) -> tuple[Grid, ...]:
    """Return the grids of `sums_steps`."""
    ctas = _row_blocks(problem, STAT_BLOCK) if sums.dq else 0
    if sums.splits:  # whose threads have 16 elements each
        blocks = _stat_blocks(problem.batch, problem.seq_k, problem.total_k) * problem.heads_k
        ctas += 2 * blocks * (STAT_BLOCK * sums.columns // (2 * CHUNK * THREADS))
    return ((ctas, 1, 1),) if ctas else ()


def sink_steps(problem: BackwardProblem, target: str) -> tuple[Step, ...]:
    """Return the kernel that computes the gradient of sinks, if it is wanted."""
    grids = sink_grids(problem)
    if not grids:
        return ()
    unit = _unit("sink_gradient", f"fp32{_suffix(problem)}", target, (_lengths(problem),))
    return (Step(unit, Geometry(grids[0], THREADS)),)


def split_scratch(problem: BackwardProblem, columns: int, key_sums: int) -> dict[str, int]:
    """Return the bytes of dk_sum and dv_sum, if the heads are split."""
    if key_sums == 0:
        return {}
    size = 4 * key_sums * problem.heads_k * key_rows(problem) * columns
    return {"dk_sum": size, "dv_sum": size}


def stat_scratch(
    problem: BackwardProblem, *, sum_columns: int = 0, orders_dq: bool = False
) -> dict[str, int]:
    """Return the bytes of lse_log2, delta, dq_sum and dq_semaphore."""
    rows = stat_bytes(problem)
    sums = {"dq_sum": stat_bytes(problem, sum_columns)} if sum_columns else {}
    semaphores = {"dq_semaphore": rows // SEMAPHORE_ROWS} if orders_dq else {}
    return {"lse_log2": rows, "delta": rows, **sums, **semaphores}


@kept
def _unit(
    kernel: str, name: str, target: str, bindings: Sequence[Binding], header: str = ""
) -> Unit:
    source = render(
        entry=f"{ENTRY}_{kernel}_{name}",
        title=f"{kernel} of a backward pass",
        header=f"fa/backward/{header or kernel}.cuh",
        bindings=(*bindings, Number("threads", THREADS)),
        asserts=LAYOUT_ASSERTS,
        bounds=f"{THREADS}",
        parameters=(PARAMETER,),
        body=(f"fa::backward::{kernel}<Config>(args);",),
    )
    return Unit(f"backward_{kernel}_{name}", target, source)


def sink_grids(problem: BackwardProblem) -> tuple[Grid, ...]:
    """Return the grids of `sink_steps`."""
    return ((problem.heads, 1, 1),) if problem.wanted.dsinks else ()


def prepared_blocks(problem: BackwardProblem) -> Grid:
    """Return the grid of `prepare_step`."""
    return _row_blocks(problem, _prepared_rows(problem)), 1, 1


def _row_blocks(problem: BackwardProblem, rows: int) -> int:
    """Return the CTAs that have a block of so many rows each."""
    packed = None if problem.seqused_k else problem.total_q
    blocks = _stat_blocks(problem.batch, problem.seq_q, packed)
    ctas = blocks * (STAT_BLOCK // rows) * problem.heads
    if ctas > MAX_GRID_X:
        raise UnsupportedError(
            f"{problem.batch} sequences of up to {problem.seq_q} queries in {problem.heads} heads"
            f" have {ctas} blocks of {rows} rows; a launch takes at most {MAX_GRID_X}, split"
            " the tensors along batch"
        )
    return ctas


def _stat_blocks(batch: int, longest: int, total: int | None) -> int:
    """Return the blocks of statistics of all sequences of a head. Of packed ones only the sum of
    their lengths is known here."""
    blocks = batch * max(1, -(-longest // STAT_BLOCK))
    if total is None:
        return blocks
    return max(1, min(blocks, (total + batch * (STAT_BLOCK - 1)) // STAT_BLOCK))


def _dtype(problem: BackwardProblem) -> DType:
    return DType.from_string(str(problem.dtype))


def _lower(problem: BackwardProblem) -> str:
    return _dtype(problem).name.lower()


def _suffix(problem: BackwardProblem) -> str:
    return "_per_batch" if problem.per_batch else ""


def _lengths(problem: BackwardProblem) -> Variant:
    return Variant("Lengths", "attn/lengths", "PerBatch" if problem.per_batch else "Same")

# SPDX-License-Identifier: Apache-2.0
"""The gradient of a captured tensor that scores read at every query and key, by tiles of dS.

Where no two scores read the same element, the copy engine stores the tiles as the gradient. Else it
stores them in a workspace, and another kernel adds up those of the heads that share a plane of the
tensor. The workspace has some of the keys at a time, so that its size is bounded.
"""

from __future__ import annotations

from math import prod

import torch

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.dtype import DType
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, kept, render
from flash_attention.families.backward_args import (
    LAYOUT_ASSERTS,
    PARAMETER,
    STAT_BLOCK,
    BackwardKernelArgs,
)
from flash_attention.families.backward_steps import ENTRY, THREADS
from flash_attention.families.bindings import PROGRAM, dtype_binding
from flash_attention.families.recipe import Geometry, MapDescription, Step, workspace_bytes
from flash_attention.families.sm90.backward.config import WIDEST_KEYS, HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.parts import Part, Parts
from flash_attention.families.sm90.forward.bias import ELEMENT_BYTES, PANEL_KEYS, has_bias
from flash_attention.families.traced_args import (
    keeps_derivatives,
    layout_asserts,
    parameter,
    prelude,
)
from flash_attention.program.bias import MOST_DIMS, aligned_keys, tile_slot
from flash_attention.program.nodes import How, Program

TILES, TILE_SUMS = "bias_gradient", "ds"  # the arguments that point at where tiles are stored
ROWS = 16  # of a plane that a CTA of the kernel after the main one adds up


def stores_tiles(problem: BackwardProblem, config: HopperBackwardKernelConfig | None) -> bool:
    """Whether kernels of a config, or of the one that is chosen if it is None, can store the
    gradient by tiles. They need the tiles of dS that a warpgroup for dQ reads, without slopes."""
    program, most = problem.program, max(problem.d_head, problem.d_v)
    if program is None or tile_slot(program) is None or not has_bias(problem):
        return False
    if problem.softcap or keeps_derivatives(program) or not problem.wanted.dq or most > WIDEST_KEYS:
        return False
    fits = _column_bytes(problem) * STAT_BLOCK <= workspace_bytes()
    return fits and not problem.idle and (config is None or config.own_warpgroup)


def tiles_of_bias(program: Program | None) -> tuple[str, ...]:
    """Return the argument that points at where a kernel stores tiles, if it does."""
    if program is None or program.by_tiles is None:
        return ()
    return (TILES if program.by_tiles.how is How.TILES else TILE_SUMS,)


def key_parts(problem: BackwardProblem, most_bytes: int) -> Parts:
    """Split the work into as few ranges of keys as a workspace of this size allows."""
    column = _column_bytes(problem)
    most = max(most_bytes // column // STAT_BLOCK, 1) * STAT_BLOCK
    blocks = -(-problem.seq_k // STAT_BLOCK)
    keys = -(-blocks // -(-problem.seq_k // most)) * STAT_BLOCK
    heads = problem.batch * problem.heads_k
    firsts = range(0, problem.seq_k, keys)
    parts = tuple(Part(0, heads, first, min(keys, problem.seq_k - first)) for first in firsts)
    return Parts(parts, column * aligned_keys(parts[0].part_keys))


def describe_tiles(problem: Problem, rows: int, keys: int) -> MapDescription:
    """Describe the gradient as [outer, inner, queries, keys], or the workspace of so many keys as
    [batch, heads, queries, keys], with a box of `rows` queries and the keys of a panel."""
    assert problem.bias is not None
    assert problem.program is not None
    sizes: tuple[int, ...] = (problem.batch, problem.heads, problem.seq_q)
    if TILES in tiles_of_bias(problem.program):
        *own, keys = problem.bias.shape
        sizes = *(MOST_DIMS - 1 - len(own)) * (1,), *own
    dims = aligned_keys(keys), *reversed(sizes)
    return MapDescription(
        dims=dims,
        strides=tuple(ELEMENT_BYTES * prod(dims[: d + 1]) for d in range(len(dims) - 1)),
        box=(PANEL_KEYS, rows, 1, 1),
        swizzle=PANEL_KEYS * ELEMENT_BYTES,
        dtype=problem.dtype,
    )


def sum_step(problem: BackwardProblem, part: Part, target: str) -> Step:
    """Return the kernel that adds up the tiles of a part."""
    assert problem.bias is not None
    assert problem.program is not None
    *planes, queries, _ = problem.bias.shape
    ctas = prod(planes) * -(-queries // ROWS)
    dtype = problem.program.tensors[problem.bias.slot].dtype
    unit = _sum_unit(problem.program, problem.features.mask.value, problem.dtype, dtype, target)
    return Step(unit, Geometry((ctas, 1, 1), THREADS), values=part.values)


@kept
def _sum_unit(
    program: Program, mask: str, dtype: torch.dtype, own_dtype: torch.dtype, target: str
) -> Unit:
    of_tiles, own = (DType.from_string(str(each)) for each in (dtype, own_dtype))
    name = f"bias_gradient_{of_tiles.name.lower()}_{mask.lower()}_{program.digest}"
    source = render(
        entry=f"{ENTRY}_{name}",
        title="The gradient of a bias from tiles of dS",
        header="fa/backward/bias_gradient.cuh",
        bindings=(
            dtype_binding(of_tiles),
            Variant("Own", "dtype", dtype_binding(own).type),
            Variant("Mask", "attn/mask", mask),
            Number("rows", ROWS),
            Number("threads", THREADS),
        ),
        asserts=layout_asserts(BackwardKernelArgs, program, LAYOUT_ASSERTS),
        prelude=prelude(program),
        bounds=f"{THREADS}",
        parameters=(parameter(BackwardKernelArgs, program, PARAMETER),),
        body=(f"fa::backward::bias_gradient<Config, {PROGRAM}>(args);",),
    )
    return Unit(f"backward_{name}", target, source)


def _column_bytes(problem: Problem) -> int:
    """Return the bytes of dS of one key in the workspace."""
    return problem.batch * problem.heads * problem.seq_q * ELEMENT_BYTES

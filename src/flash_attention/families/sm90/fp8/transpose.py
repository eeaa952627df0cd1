# SPDX-License-Identifier: Apache-2.0
"""The kernel that transposes V before an FP8 kernel, and the memory for its result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import lcm

from flash_attention.arch import WARP_SIZE
from flash_attention.call.features import PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.compile.binding import Number, Variant
from flash_attention.compile.unit import Unit, render
from flash_attention.families.bindings import lengths_binding
from flash_attention.families.recipe import Geometry, Grid, Step
from flash_attention.families.sm90.fp8.args import LAYOUT_ASSERTS, PARAMETER, tiles_keys
from flash_attention.families.sm90.fp8.config import SUMS, HopperFp8KernelConfig

KEYS = 64  # of a CTA
GROUP_KEYS = 16  # of a warp
ENTRY = "flash_transpose_kernel"
_NAME = re.compile(r"transpose_d(\d+)(_tensor_sums)?(_per_batch)?(?:_page_(\d+))?(?:_from_(\d+))?")


@dataclass(frozen=True)
class TransposeConfig:
    """What a transposing kernel is compiled for, whichever kernel reads its result."""

    d_head: int
    tensor_sums: bool
    per_batch: bool = False  # sequences differ in their number of keys
    page_keys: int = 0  # 0 if the keys are not in pages
    least_queries: int = 0  # sequences with fewer are left to another kernel

    def kernel_name(self) -> str:
        """Return a name for folders, logs and profiles, of letters, digits and underscores."""
        sums = "_tensor_sums" if self.tensor_sums else ""
        lengths = "_per_batch" if self.per_batch else ""
        pages = f"_page_{self.page_keys}" if self.page_keys else ""
        least = f"_from_{self.least_queries}" if self.least_queries else ""
        return f"transpose_d{self.d_head}{sums}{lengths}{pages}{least}"


def parse_transpose_name(name: str) -> TransposeConfig | None:
    """Return the config with this `kernel_name()`, or None if it is another kernel's name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    d_head, sums, per_batch, page_keys, least_queries = found.groups()
    return TransposeConfig(
        int(d_head), bool(sums), bool(per_batch), int(page_keys or 0), int(least_queries or 0)
    )


def step_keys(config: HopperFp8KernelConfig) -> int:
    """Return how many keys are whole blocks, and whole CTAs of this kernel."""
    return lcm(config.B_c, KEYS)


def tiles_bytes(config: HopperFp8KernelConfig, problem: Problem) -> int:
    """Count the bytes of the result."""
    heads = problem.heads_k * (problem.most_sequences if problem.total_k is None else 1)
    return heads * tiles_keys(step_keys(config), problem) * config.value_rows


def pages_variant(page_keys: int, *, copied: bool = False) -> Variant:
    """The variant that finds the keys of a sequence, and loads or copies them."""
    if not page_keys:
        return Variant("Pages", "sm90/fp8/pages", "Contiguous")
    return Variant("Pages", "sm90/fp8/pages", "CopiedRows" if copied else "Paged", page_keys)


def transpose_unit(config: HopperFp8KernelConfig, target: str, features: Features = PLAIN) -> Unit:
    """Return the translation unit of the kernel that transposes V for a config."""
    name = TransposeConfig(
        *(config.d_head, config.tensor_sums, features.per_batch),
        page_keys=features.page_keys,
        least_queries=features.least_queries,
    ).kernel_name()
    source = render(
        entry=f"{ENTRY}_{name.removeprefix('transpose_')}",
        title=f"V is transposed, {config.value_rows} rows",
        header="fa/sm90/fp8/transpose.cuh",
        bindings=(
            Number("d_head", config.d_head),
            Number("transposed_keys", KEYS),
            SUMS(config, "tensor_sums"),
            lengths_binding(features),
            pages_variant(features.page_keys),
        ),
        asserts=LAYOUT_ASSERTS,
        bounds=f"{KEYS // GROUP_KEYS * WARP_SIZE}",
        parameters=(PARAMETER,),
        body=("fa::sm90::fp8::transpose<Config>(args);",),
    )
    return Unit(name, target, source)


def transposing_grid(config: HopperFp8KernelConfig, problem: Problem) -> Grid:
    """Return the grid of the kernel that transposes V of a problem."""
    step = step_keys(config)
    keys = -(-problem.seq_k // step) * step
    return keys // KEYS * problem.heads_k * problem.most_sequences, 1, 1


def transposing(config: HopperFp8KernelConfig, problem: Problem, target: str) -> tuple[Step, ...]:
    """Return the kernel that transposes V of a problem, if it is not transposed."""
    if config.values_transposed:
        return ()
    geometry = Geometry(transposing_grid(config, problem), KEYS // GROUP_KEYS * WARP_SIZE)
    unit = transpose_unit(config, target, problem.features)
    return (Step(unit, geometry),)

# SPDX-License-Identifier: Apache-2.0
"""Plants the listed mistakes, runs them, and writes the table of what caught them:

python -m tests.emulator.mutations docs/emulator.md
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.errors import LaunchError
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import Judge, generate_qkv
from flash_attention.tools.bench.blocks import replace_block, table, wrap
from tests.emulator import hopper_mutations, short_mutations
from tests.emulator.ampere_mutations import DEADLOCK, MUTATIONS, NUMBERS, Mutation
from tests.emulator.edits import Edit, compiler
from tests.emulator.scenes import Catch
from tests.emulator.short_mutations import ShortMutation

SEQ, HEADS, D_HEAD = 256, 2, 128
MARKER, HOPPER_MARKER, SHORT_MARKER = "mutations", "hopper-mutations", "short-mutations"


@cache
def problem() -> tuple[tuple[Tensor, Tensor, Tensor], Judge]:
    """q, k and v; V lies in memory head by head, so its strides are not those of K."""
    q, k, v = generate_qkv(1, SEQ, HEADS, D_HEAD, DType.FP16, seed=3)
    v = v.transpose(1, 2).contiguous().transpose(1, 2)
    return (q, k, v), Judge(q, k, v)


def catch(mutation: Mutation, folder: Path, schedule: str = "lockstep") -> Catch:
    """Run a mutated kernel, its headers edited in `folder`, under one order of its warps."""
    tensors, judge = problem()
    call, config = Call(*tensors), config_of(mutation)
    try:
        emulation = emulate_plan(
            Plan(call, config),
            call,
            Settings(schedule),
            compile_unit=compiler(mutation.edits, folder),
            smem_bytes=config.smem_bytes() - mutation.missing_smem_bytes,
        )
    except LaunchError:
        return Catch(frozenset({DEADLOCK}), output_right=False)
    right = judge.check(emulation.output.nan_to_num(nan=torch.inf)).ok
    return Catch(frozenset(finding.kind for finding in emulation.findings), right)


def config_of(mutation: Mutation) -> FlashForwardKernelConfig:
    """The config of the mutation's rung; a static stride is taken away, V's rows differ."""
    config = get_ladder(DType.FP16, D_HEAD, HEADS)[mutation.rung - 1].config
    assert isinstance(config, FlashForwardKernelConfig)
    return replace(config, static_row_stride=0, **mutation.changes)


def caught(mutation: Mutation | ShortMutation, seen: Catch) -> bool:
    """Whether the catcher that was named before the run is among those that fired."""
    if mutation.caught_by == NUMBERS:
        return not seen.output_right
    return mutation.caught_by in seen.kinds


def block(marker: str, header: list[str], rows: list[list[str]]) -> str:
    """A table as it stands in the documentation."""
    return wrap(marker, table(header, rows, left=len(header)))


def ampere_rows() -> list[list[str]]:
    rows = []
    for mutation in MUTATIONS:
        with tempfile.TemporaryDirectory() as folder:
            seen = catch(mutation, Path(folder))
        rows.append(
            [
                mutation.name,
                _places(mutation.edits) or "launch",
                str(mutation.rung),
                *_verdict(mutation.caught_by, seen.kinds, seen.output_right),
            ]
        )
    return rows


def hopper_rows() -> list[list[str]]:
    rows = []
    for mutation in hopper_mutations.MUTATIONS:
        seen = hopper_mutations.catch(mutation)
        verdict = _verdict(mutation.caught_by, seen.kinds, seen.output_right)
        rows.append([mutation.name, f"`{mutation.define}`", *verdict])
    return rows


def short_rows() -> list[list[str]]:
    rows = []
    for mutation in short_mutations.MUTATIONS:
        seen = short_mutations.catch(mutation)
        verdict = _verdict(mutation.caught_by, seen.kinds, seen.output_right)
        rows.append([mutation.name, _places(mutation.edits), *verdict])
    return rows


def _places(edits: Iterable[Edit]) -> str:
    return ", ".join(dict.fromkeys(f"`{edit.header}`" for edit in edits))


def _verdict(caught_by: str, kinds: frozenset[str], output_right: bool) -> list[str]:
    also = ", ".join(sorted(kinds - {caught_by}))
    return [caught_by, also, "right" if output_right else "wrong"]


def main(document: Path) -> None:
    verdict = ["caught by", "also reported", "output"]
    tables = {
        MARKER: block(MARKER, ["mistake", "where", "rung", *verdict], ampere_rows()),
        HOPPER_MARKER: block(HOPPER_MARKER, ["mistake", "macro", *verdict], hopper_rows()),
        SHORT_MARKER: block(SHORT_MARKER, ["mistake", "where", *verdict], short_rows()),
    }
    text = document.read_text()
    for marker, new in tables.items():
        text = replace_block(text, marker, new)
    document.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

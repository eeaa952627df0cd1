# SPDX-License-Identifier: Apache-2.0
"""Everything `flash-attention inspect` says of a kernel, as named numbers in sections."""

from __future__ import annotations

from flash_attention.families.passes import Pass
from flash_attention.families.registry import family_of
from flash_attention_workbench.commands.emulated import EmulatedKernel
from flash_attention_workbench.inspect.inspection import Inspection
from flash_attention_workbench.inspect.machine_loop import MachineLoop
from flash_attention_workbench.inspect.sm_rates import RATES, ROOFS, TENSOR_CORES

Value = float | str
Facts = dict[str, dict[str, Value]]
"""Sections, and in each what is known by name."""


def facts_of(inspection: Inspection, machine: MachineLoop) -> Facts:
    """What compiler and machine code say."""
    backward = family_of(inspection.config).pass_ is Pass.BACKWARD
    block, rows = ("query block", "keys") if backward else ("key block", "rows")
    return {
        "resources": resources(inspection),
        f"a {block}, for all {rows} of a CTA": key_block(inspection),
        f"the loop over {block}s": loop(machine),
        f"instructions of a warp for a {block}": by_class(machine),
        "by opcode": by_opcode(machine),
        f"clocks of a multiprocessor for a {block}": clocks(inspection, machine),
        "roofline": roofline(inspection),
    }


def resources(inspection: Inspection) -> dict[str, Value]:
    config = inspection.config
    facts: dict[str, Value] = {"registers per thread": inspection.registers}
    return facts | {
        **config.register_facts,
        "spilled bytes": inspection.spills,
        "stack, bytes": inspection.compiled.resources.stack_bytes,
        "threads of a CTA": config.num_threads,
        "shared memory, KiB": config.smem_bytes() / 1024,
        "CTAs per SM": inspection.ctas_per_sm,
        "limited by": inspection.limited_by,
        "machine code, bytes": len(inspection.machine_code),
    }


def key_block(inspection: Inspection) -> dict[str, Value]:
    block = inspection.key_block
    return {
        "query rows": block.rows,
        "keys": block.keys,
        "kFLOP of the products": block.flop / 1e3,
        f"KiB of {_loaded(inspection)}": block.loaded_bytes / 1024,
        "exponentials": block.exponentials,
    }


def _loaded(inspection: Inspection) -> str:
    """The tensors that a block is of."""
    return "Q and dO" if family_of(inspection.config).pass_ is Pass.BACKWARD else "K and V"


def loop(machine: MachineLoop) -> dict[str, Value]:
    body, straight = machine.body, machine.straight
    return {
        "from address": f"{body[0].address:#x}",
        "to address": f"{straight[-1].address:#x}",
        "instructions": len(body),
        "of them in every turn": len(straight),
        "blocks of a turn": machine.blocks_a_turn,
        "instructions of the kernel": len(machine.instructions),
    }


def by_class(machine: MachineLoop) -> dict[str, Value]:
    mix = {name: count for name, count in machine.mix().items() if count}
    return {"all": sum(mix.values()), **mix}


SHOWN = (
    *("HGMMA", "QGMMA", "HMMA", "LDSM", "STSM", "MUFU", "SHFL", "BAR", "SYNCS", "LDGSTS"),
    *("UTMALDG", "UBLKCP"),
)


def by_opcode(machine: MachineLoop) -> dict[str, Value]:
    """Those that make the difference: products, their operands, exponentials, waiting."""
    counts = machine.opcodes().most_common()
    chosen = {name: count for name, count in counts if name.partition(".")[0] in SHOWN}
    return {name: count / machine.blocks_a_turn for name, count in chosen.items()}


def clocks(inspection: Inspection, machine: MachineLoop) -> dict[str, Value]:
    units = machine.work().clocks(RATES[inspection.arch.name])
    facts: dict[str, Value] = {**units}
    if TENSOR_CORES not in units:
        return facts
    busiest = max(units, key=lambda name: units[name])
    at_most = 100 * units[TENSOR_CORES] / units[busiest]
    return facts | {"busiest": busiest, "tensor cores at most, %": at_most}


def roofline(inspection: Inspection) -> dict[str, Value]:
    intensity = inspection.key_block.flop_per_byte
    facts: dict[str, Value] = {f"FLOP for a byte of {_loaded(inspection)}": intensity}
    roof = ROOFS.get(inspection.arch.name)
    if roof is None:
        return facts
    ridge = roof.ridge * 2 / inspection.key_block.itemsize  # 8-bit products are twice as fast
    share = min(1.0, intensity / ridge)
    return facts | {
        f"ridge of an {roof.name}": ridge,
        "of the peak, were nothing in L2, %": 100 * share,
    }


def emulated(kernel: EmulatedKernel) -> dict[str, Value]:
    """What the emulator counted."""
    counted = kernel.counters
    return {
        "output" if kernel.judged == "output" else "gradients": "right"
        if kernel.check.ok
        else "WRONG",
        "findings": len(kernel.findings),
        "PTX instructions of a tile for a key block": kernel.instructions_per_key_block,
        "bank conflicts": counted.conflicts,
        "wavefronts for each one needed": kernel.conflict_ways,
        "sectors a request": kernel.sectors_per_request,
    }

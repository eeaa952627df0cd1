# SPDX-License-Identifier: Apache-2.0
"""A kernel made ready to run: parsed, cut into blocks, compiled to Python."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any

import numpy as np

from ptx_emulator.emit import BlockEmitter
from ptx_emulator.errors import EmulatorError, RefusedKernelError
from ptx_emulator.machine import clusters
from ptx_emulator.machine.arithmetic import integers, narrow, numerics, rounding
from ptx_emulator.program.blocks import Block, build_blocks, written_by
from ptx_emulator.program.flags import flag_reads
from ptx_emulator.program.guesses import guesses, with_volatile
from ptx_emulator.program.hooks import Hooks
from ptx_emulator.program.inflight import registers_in_flight
from ptx_emulator.program.layout import Layout
from ptx_emulator.program.loops import loop_nests
from ptx_emulator.program.meetings import meets_at_barriers
from ptx_emulator.program.order import priorities
from ptx_emulator.program.ordering import (
    Ordering,
    copies_meet_flags,
    ctas_exchange,
    has_fences,
    may_be_shared,
    moves_in_bulk,
    ordering_of,
)
from ptx_emulator.program.origins import origins_of_addresses
from ptx_emulator.program.printed import Given, given_to_printf
from ptx_emulator.program.registers import registers_at_launch
from ptx_emulator.program.unfenced import unfenced_products
from ptx_emulator.program.unwritten import doubtful_registers
from ptx_emulator.program.waiting import untested_waits, waiting_loops
from ptx_emulator.ptx.deferred import Deferred, Rest, state_without_rest
from ptx_emulator.ptx.model import Kernel
from ptx_emulator.ptx.parse import parse
from ptx_emulator.types import STORAGE, STORAGE_OF_PTX

BlockFunction = Callable[..., Any]
_FACTS = (
    *("orderings", "pointers", "bulk_copies", "atomics", "flag_reads", "strong_stores"),
    *("looks_at_shared_flags", "global_writes", "meets_at_barriers", "given_to_printf"),
    *("registers_at_launch", "has_mbarriers", "uses_engines", "acting_blocks"),
)


class Program(Deferred):
    """A kernel, translated to a Python function per basic block."""

    LATER = frozenset({"_texts"})

    def __init__(
        self, kernel: Kernel, hooks: Hooks | None = None, lanes_wait: bool = False
    ) -> None:
        self._guesses = guesses(kernel.instructions)
        self.kernel = kernel = with_volatile(kernel, self._guesses)
        self.blocks = build_blocks(kernel, lanes_wait)
        self.priorities = priorities(self.blocks)
        self.loop_nests = loop_nests(self.blocks)
        self.waiting_loops = waiting_loops(self.blocks, self.loop_nests)
        self.in_flight = registers_in_flight(kernel, self.blocks)
        self.unfenced = unfenced_products(kernel, self.blocks)
        self.untested = untested_waits(self.blocks)
        self.doubts = doubtful_registers(self.blocks)
        self.origins = origins_of_addresses(kernel)
        layout = self._layout = Layout(kernel, self.blocks, hooks or Hooks())
        # What is not emulated is refused here; the text for some lanes differs in no instruction.
        emitters = [BlockEmitter(layout, block, all_lanes=True) for block in self.blocks]
        self._texts = [emitter.source() for emitter in emitters]
        refusals = [refusal for emitter in emitters for refusal in emitter.refusals]
        refusals.sort(key=lambda refusal: refusal.line or 0)
        if refusals:
            raise RefusedKernelError(kernel.name, refusals)
        self.static_smem = layout.static_smem
        self.local_bytes = layout.local_bytes
        self.shared_addresses = {v.name: layout.symbol_address(v.name) for v in kernel.shared}
        self.slot_types = [
            STORAGE[STORAGE_OF_PTX[kernel.registers[register]]] for register in layout.slots
        ]
        self.constant_arrays = layout.constant_arrays
        self.param_reads = sorted(layout.param_reads)
        self.param_bytes = max((p.offset + p.size for p in kernel.params), default=0)
        self.ctas_exchange = ctas_exchange(kernel.instructions)
        self.copies_meet_flags = copies_meet_flags(kernel.instructions)
        self.has_fences = has_fences(kernel.instructions)
        self.special_registers = sorted(layout.special_registers)
        self.num_instructions = len(kernel.instructions)
        self.uses_wgmma = any(i.parts[0] == "wgmma" for i in kernel.instructions)
        for block in self.blocks:
            block.forget_effects()
        self._live_slots: dict[int, list[int]] = {}
        self.number = secrets.token_bytes(16)  # code names constants as this program counts them
        self._prepare()

    def _prepare(self) -> None:
        """Make room for code and functions, of which there are none yet."""
        self._namespace: dict[str, Any] = {
            "np": np,
            "numerics": numerics,
            "integers": integers,
            "narrow": narrow,
            "rounding": rounding,
            "clusters": clusters,
            **self._layout.scalars,
        }
        self._functions: dict[tuple[int, bool], BlockFunction] = {}
        self.codes: dict[tuple[int, bool], CodeType] = {}  # of the functions that were needed
        self.codes_kept = 0  # as many of them are on disk

    def __getstate__(self) -> dict[str, Any]:
        """Everything but functions and their code. What the instructions are asked for in a run is
        answered now, and the instructions themselves are left for later."""
        for fact in _FACTS:
            getattr(self, fact)
        for block in self.blocks:
            block.forget_effects()
            _ = block.last, block.spins
        for header in self.waiting_loops:
            self.live_slots(header)
        owners: tuple[Deferred, ...] = (self, self.kernel, self._layout, *self.blocks)
        rest = Rest(owners)
        mine, kernel, layout, *blocks = (
            state_without_rest(owner, rest, number) for number, owner in enumerate(owners)
        )
        left_out = {"_namespace", "_functions", "codes", "codes_kept", "whose_lanes_wait"}
        left_out |= {"kernel", "blocks", "_layout"}
        mine = {name: value for name, value in mine.items() if name not in left_out}
        del layout["kernel"]
        return mine | {"_parts": (kernel, layout, blocks)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kernel, layout, blocks = state.pop("_parts")
        vars(self).update(state)
        self.kernel = Kernel.__new__(Kernel)
        vars(self.kernel).update(kernel)
        self._layout = Layout.__new__(Layout)
        vars(self._layout).update(layout, kernel=self.kernel)
        self.blocks = [Block.__new__(Block) for _ in blocks]
        for block, of_block in zip(self.blocks, blocks, strict=True):
            vars(block).update(of_block)
        self._prepare()

    def symbol_address(self, name: str) -> int:
        """Where a variable in shared or local memory, or a parameter, is."""
        return self._layout.symbol_address(name)

    def live_slots(self, index: int) -> list[int]:
        """The registers whose values at the start of a block matter."""
        known = self._live_slots.get(index)
        if known is None:
            names = sorted(self.blocks[index].live_in)
            known = self._live_slots[index] = [self._layout.slots[name] for name in names]
        return known

    @cached_property
    def orderings(self) -> dict[int, Ordering]:
        """What accesses by threads say of their order, by instruction."""
        accesses = ("ld", "st", "atom", "red")
        return {
            pc: ordering_of(instruction)
            for pc, instruction in enumerate(self.kernel.instructions)
            if instruction.parts[0] in accesses
        }

    @cached_property
    def pointers(self) -> list[tuple[int, tuple[int, ...]]]:
        """The accesses to global memory, with the parameters that their addresses come from."""
        return [
            (pc, tuple(o.parameter for o in origins if o.parameter is not None))
            for (space, pc), origins in self.origins.items()
            if space == "global"
        ]

    @cached_property
    def bulk_copies(self) -> list[int]:
        """The instructions by which copy engines access global memory."""
        return [pc for pc, i in enumerate(self.kernel.instructions) if moves_in_bulk(i)]

    @cached_property
    def atomics(self) -> list[int]:
        """The instructions that are atomics."""
        instructions = enumerate(self.kernel.instructions)
        return [pc for pc, i in instructions if i.parts[0] in ("atom", "red")]

    @cached_property
    def flag_reads(self) -> list[int]:
        """The strong loads that decide where threads go next, and guesses at what is there."""
        return flag_reads(self.blocks) + self._guesses

    @cached_property
    def strong_stores(self) -> list[int]:
        """The stores that are more than plain ones."""
        return [
            pc
            for pc, ordering in self.orderings.items()
            if ordering.strong and self.kernel.instructions[pc].parts[0] == "st"
        ]

    @cached_property
    def looks_at_shared_flags(self) -> bool:
        """Whether a strong load, or an atomic whose result is used, may look at shared memory."""
        return any(
            ordering.strong
            and may_be_shared(self.kernel.instructions[pc])
            and not self._layout.used.isdisjoint(written_by(self.kernel.instructions[pc]))
            for pc, ordering in self.orderings.items()
        )

    @cached_property
    def has_mbarriers(self) -> bool:
        return any(i.parts[0] == "mbarrier" for i in self.kernel.instructions)

    @cached_property
    def uses_engines(self) -> bool:
        """Whether anything but threads and cp.async accesses memory, or may arrive for it."""
        return self.has_mbarriers or self.uses_wgmma or bool(self.bulk_copies)

    @cached_property
    def acting_blocks(self) -> list[bool]:
        """Whether each block does more than a way out of a kernel."""
        idle = {"bra", "ret", "exit", "mov"}
        blocks = self.blocks
        return [not idle.issuperset(i.parts[0] for i in block.instructions) for block in blocks]

    @cached_property
    def global_writes(self) -> list[int]:
        """The stores and atomics that name global memory, or none."""
        elsewhere = {"shared", "local", "param", "const"}
        return [
            pc
            for pc, instruction in enumerate(self.kernel.instructions)
            if instruction.parts[0] in ("st", "atom", "red")
            and elsewhere.isdisjoint(part.split("::")[0] for part in instruction.parts)
        ]

    @cached_property
    def meets_at_barriers(self) -> bool:
        return meets_at_barriers(self.kernel, self.blocks, self._layout.used)

    @cached_property
    def whose_lanes_wait(self) -> Program:
        """The program in which lanes wait for each other at __syncwarp, wherever they reach it."""
        return Program(self.kernel, lanes_wait=True)

    @cached_property
    def given_to_printf(self) -> dict[int, Given]:
        return given_to_printf(self.kernel, self.blocks)

    @cached_property
    def registers_at_launch(self) -> int | None:
        return registers_at_launch(self.kernel)

    def function(self, index: int, all_lanes: bool) -> BlockFunction:
        """The function of a block, for all lanes or for some; most blocks need one of the two."""
        known = self._functions.get((index, all_lanes))
        return known or self._compile(index, all_lanes)

    def _compile(self, index: int, all_lanes: bool) -> BlockFunction:
        emitter = BlockEmitter(self._layout, self.blocks[index], all_lanes=all_lanes)
        code = self.codes.get((index, all_lanes))
        if code is None:
            text = self._texts[index] if all_lanes else emitter.source()
            code = compile(text, f"<{self.kernel.name}>", "exec")
            self.codes[index, all_lanes] = code
        exec(code, self._namespace)
        function: BlockFunction = self._namespace[emitter.function_name]
        self._functions[index, all_lanes] = function
        return function


@lru_cache(maxsize=16)  # the largest take 20 MB
def load_program(ptx: str, entry: str | None = None) -> Program:
    """The program of a kernel; the same text is parsed and compiled once a process."""
    kernels = parse(ptx)
    if entry is None and len(kernels) == 1:
        (entry,) = kernels
    if entry is None or entry not in kernels:
        raise EmulatorError(f"there is no kernel {entry!r}; the PTX has {', '.join(kernels)}")
    return Program(kernels[entry])

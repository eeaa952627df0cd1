# SPDX-License-Identifier: Apache-2.0
"""One key block of one query block: what the kernel has in S, m, l, P and O, and what it should.

The kernel is run on the keys it has visited so far, and asked in four forms: as it is (O), and with
one slot bound to a probe of `include/fa/probe` that lets S, m and l, or P out through O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.compile import ENTRY, INCLUDE_DIR, compile_kernel
from flash_attention.compile.binding import Variant
from flash_attention.compile.unit import translation_unit
from flash_attention.emulator import Finding
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import FlashForwardKernelConfig, KernelConfig
from flash_attention.launch import driver
from flash_attention.launch.emulation import Settings, emulate_args
from flash_attention.launch.kernels import device_arch
from flash_attention.launch.plan import CPU, LaunchPlan

PIECES = 3  # of a float that leaves through a 16-bit output
PIECE_COLUMNS = 8  # of O that hold the same piece
SCORES = Variant("Exponential", "probe", "Scores")
STATISTICS = Variant("Normalise", "probe", "Statistics")
UNNORMALISED = Variant("Normalise", "probe", "Unnormalised")


@dataclass(frozen=True)
class State:
    """After one key block, in float64: S is q k^T unscaled; m and P count in scaled scores."""

    s: Tensor  # [rows, keys]
    m: Tensor  # [rows], the running maximum
    l: Tensor  # [rows], the running sum  # noqa: E741
    p: Tensor  # [rows, keys], exp(scale s - m)
    o: Tensor  # [rows, d_head], normalised


def reference_state(q: Tensor, key_blocks: Sequence[tuple[Tensor, Tensor]], scale: float) -> State:
    """The online softmax block by block; q is [rows, d_head], a block is (k, v)."""
    queries = q.double()
    m = torch.full((len(q),), -torch.inf, dtype=torch.float64)
    total, accumulated = torch.zeros_like(m), torch.zeros_like(queries)
    s = p = queries
    for k, v in key_blocks:
        s = queries @ k.double().T
        new_m = torch.maximum(m, (scale * s).amax(dim=1))
        shrink = torch.exp(m - new_m)
        p = torch.exp(scale * s - new_m[:, None])
        total = total * shrink + p.sum(dim=1)
        accumulated = accumulated * shrink[:, None] + p @ v.double()
        m = new_m
    return State(s, m, total, p, accumulated / total[:, None])


class Inspection:
    """A kernel at one key block: `step` counts key blocks in the order the kernel visits them.

    q, k and v are (batch, seq, heads, d_head) tensors on the CPU or a GPU; `row` names a query row,
    and with it the block of B_r rows that is looked at, of one head of one batch entry.
    """

    def __init__(
        self,
        config: KernelConfig,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        step: int,
        row: int = 0,
        head: int = 0,
        batch: int = 0,
        include_dir: Path = INCLUDE_DIR,
    ) -> None:
        if not isinstance(config, FlashForwardKernelConfig):
            raise UnsupportedError(
                f"{config.short_form()} cannot be looked into, only kernels of a"
                " FlashForwardKernelConfig have probes; emulate runs it with every check on"
            )
        blocks = k.shape[1] // config.B_c
        _check_index("key block", step, blocks)
        for name, index, dim in (("row", row, 1), ("head", head, 2), ("batch", batch, 0)):
            _check_index(name, index, q.shape[dim])
        self.config = config
        self.step = step
        self.scale = config.d_head**-0.5
        self.first_row = row // config.B_r * config.B_r
        self.key_block = blocks - 1 - step if config.reverse_kv else step
        self._include_dir = include_dir
        first = self.key_block if config.reverse_kv else 0
        visited = slice(first * config.B_c, (first + step + 1) * config.B_c)
        rows = slice(self.first_row, self.first_row + config.B_r)
        self.q = q[batch, rows, head]
        self.k, self.v = (t[batch, visited, head] for t in (k, v))
        self.findings: tuple[Finding, ...] = ()

    @cached_property
    def reference(self) -> State:
        """What the kernel should have, computed on the CPU."""
        size = self.config.B_c
        blocks = list(zip(self.k.cpu().split(size), self.v.cpu().split(size), strict=True))
        if self.config.reverse_kv:
            blocks.reverse()
        return reference_state(self.q.cpu(), blocks, self.scale)

    @cached_property
    def kernel(self) -> State:
        """What the kernel has: O as it stores it, the rest through probes."""
        o = self._run(self.v)
        m, total = self._statistics()
        p = self._keys_of_last_block(UNNORMALISED, self.scale)
        s = sum(
            (self._keys_of_last_block(SCORES, float(i), UNNORMALISED) for i in range(PIECES)),
            torch.zeros_like(p),
        )
        return State(s, m, total, p, o)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        out = self._run(self.v, STATISTICS)[:, : 2 * PIECES * PIECE_COLUMNS : PIECE_COLUMNS]
        m, total = out[:, :PIECES].sum(dim=1), out[:, PIECES:].sum(dim=1)
        return (m * self.scale if self.config.optimized_softmax else m), total

    def _keys_of_last_block(self, probe: Variant, scale: float, *others: Variant) -> Tensor:
        """O with an identity for the block's V and zeros before it: column d is key d's."""
        size, d_head = self.config.B_c, self.config.d_head
        start = 0 if self.config.reverse_kv else self.step * size
        parts = []
        for first in range(0, size, d_head):
            width = min(d_head, size - first)
            values = torch.zeros_like(self.v)
            place = torch.arange(width)
            values[start + first + place, place] = 1
            parts.append(self._run(values, probe, *others, scale=scale)[:, :width])
        return torch.cat(parts, dim=1)

    def _run(self, values: Tensor, *probes: Variant, scale: float | None = None) -> Tensor:
        """O [rows, d_head] of the kernel in one form, in float64 on the CPU."""
        q, k, v = (self._spread(t) for t in (self.q, self.k, values))
        o = self._spread(torch.full_like(self.q, torch.nan))
        source = translation_unit(self.config)
        for probe in probes:
            source = bind(source, probe)
        index = q.get_device()
        arch = self.config.default_arch if index == CPU else device_arch(index)
        name = "_".join((self.config.kernel_name(), *(p.type.lower() for p in probes)))
        target = self.config.target(arch)
        compiled = compile_kernel(source, arch=target, name=name, include_dir=self._include_dir)
        views = [TensorView.of(n, t) for n, t in zip("qkvo", (q, k, v, o), strict=True)]
        problem = Problem.from_tensors(q, k, v)
        plan = LaunchPlan(self.config, problem, views, index, arch)
        args = plan.bind(q, k, v, o)
        args.softmax_scale = self.scale if scale is None else scale
        if index == CPU:
            emulation = emulate_args(plan, args, compiled.ptx, (q, k, v), Settings())
            o = emulation.output
            if not probes:
                self.findings = emulation.findings
        else:
            geometry = plan.geometry
            function = driver.load_kernel(compiled.cubin, ENTRY)
            with torch.cuda.device(index):
                driver.ready_kernel(function, index, geometry.smem_bytes)
                stream = torch.cuda.current_stream().cuda_stream
                shape = (*geometry.grid, geometry.block, 1, 1, geometry.smem_bytes)
                driver.launch_kernel(function, shape, (args,), stream, index)
        return o[0, :, 0].double().cpu()

    def _spread(self, rows: Tensor) -> Tensor:
        """[rows, d_head] as one head of one batch entry, rows as far apart as the config says."""
        stride = self.config.static_row_stride or rows.shape[1]
        room = torch.zeros(1, len(rows), 1, stride, dtype=rows.dtype, device=rows.device)
        room[0, :, 0, : rows.shape[1]] = rows
        return room[..., : rows.shape[1]]


def bind(source: str, variant: Variant) -> str:
    """A translation unit with one slot bound to another variant."""
    bound, count = re.subn(rf"using {variant.slot} = [^;]+;", variant.declaration, source)
    if count != 1:
        raise UnsupportedError(f"the translation unit binds no slot {variant.slot}")
    return bound.replace("\nstruct Config", f"#include <{variant.header}>\n\nstruct Config", 1)


def _check_index(name: str, index: int, count: int) -> None:
    if not 0 <= index < count:
        raise UnsupportedError(f"{name} {index} does not exist; there are {count}, from 0 on")

# SPDX-License-Identifier: Apache-2.0
"""Explanation: the chosen kernel, its launches and its costs, as data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from flash_attention.arch import Arch
from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentProblem
from flash_attention.kernel_configs import KernelConfig
from flash_attention_workbench.explain.backward import BackwardExplanation
from flash_attention_workbench.explain.decoding import Decoding
from flash_attention_workbench.explain.gpus import Gpu
from flash_attention_workbench.explain.launch import Launch
from flash_attention_workbench.explain.refusals import Refusal
from flash_attention_workbench.explain.user_function import FunctionExplanation
from flash_attention_workbench.explain.work import Work
from flash_attention_workbench.text import ReportRow, aligned

Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class Explanation:
    """What `attention` would do with a call. `str` gives a report of it."""

    problem: Problem  # the shapes, the element type, the mask and the scale
    arch: Arch  # the architecture that the call is explained for
    num_sms: int | None  # its multiprocessors, or None if unknown
    gpu: Gpu | None  # the measured GPU whose peaks bound the call, or None
    torch_computes: bool  # torch computes, because the tensors are on the CPU without a config
    config: KernelConfig  # the kernel that runs on a GPU
    rule: str  # what chose the config
    features: tuple[str, ...]  # what the kernel does besides plain attention
    refused: tuple[Refusal, ...]  # the kernels that were not chosen, and why
    launches: tuple[Launch, ...]  # empty if there is nothing to compute
    num_splits: int  # KV splits of all tiles; 0 if the keys are not split
    tiles: int  # tiles of query rows; an upper bound for packed sequences
    work: Work  # the FLOP and the bytes of the call
    function: FunctionExplanation | None = None  # a user's score and mask functions
    decoding: Decoding | None = None  # the kernel of sequences with few queries, if it is another
    backward: BackwardExplanation | None = None  # if gradients are asked for

    @property
    def waves(self) -> float | None:
        """The number of tiles or splits per resident CTA, or None if it is unknown."""
        if not self.launches or not self.num_sms:
            return None
        pieces = self.num_splits or self.tiles
        return pieces / (self.num_sms * max(1, self.launches[0].ctas_per_sm))

    @property
    def compute_ms(self) -> float | None:
        """The time of the FLOP at the peak matrix throughput measured on the GPU, or None."""
        peak = self.matmul_tflops
        return None if peak is None else self.work.flop / peak * 1e-9

    @property
    def matmul_tflops(self) -> float | None:
        """The peak matrix throughput of the GPU for the element type of q and k, or None."""
        if self.gpu is None:
            return None
        bits_8 = self.problem.dtype.itemsize == 1
        return self.gpu.fp8_matmul_tflops if bits_8 else self.gpu.matmul_tflops

    @property
    def memory_ms(self) -> float | None:
        """The time of the bytes at the peak memory bandwidth measured on the GPU, or None."""
        return None if self.gpu is None else self.work.num_bytes / self.gpu.copy_tb_s * 1e-9

    @property
    def bound(self) -> Bound | None:
        """Which of the two times is longer, "compute" or "memory". None for an unknown GPU."""
        if self.compute_ms is None or self.memory_ms is None:
            return None
        return "compute" if self.compute_ms > self.memory_ms else "memory"

    def rows(self) -> list[ReportRow]:
        """Return the report as rows of a name and a line."""
        kernels: list[Explanation | Decoding] = [self]
        if self.decoding is not None:
            kernels.append(self.decoding)
        launches = [line for launch in self.launches for line in launch.lines()]
        refused = [f"{refusal.kernels}: {refusal.why}" for refusal in self.refused]
        sections = {
            "problem": [str(self.problem)],
            "on": [self._place()],
            "config": self._configs(),
            "chosen by": [kernel.rule for kernel in kernels],
            "features": [", ".join(each.features) or "plain attention" for each in kernels],
            "not chosen": refused,
            "launch": launches or ["none: there is nothing to compute"],
            "tiles": [self._tiles(), *map(_tiles, kernels[1:])],
            "work": [self._work()],
            "bound": [self._roofline()],
            **({} if self.function is None else self.function.sections()),
            **({} if self.backward is None else self.backward.sections()),
        }
        return [(name, line) for name, lines in sections.items() for line in lines]

    def __str__(self) -> str:
        return aligned(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        problem = self.problem.described
        work = asdict(self.work) | {"intensity": self.work.intensity}
        derived = ("waves", "compute_ms", "memory_ms", "bound")
        return {
            **asdict(self),
            "problem": problem,
            "arch": self.arch.name,
            "config": self.config.short_form(),
            "tile": (self.config.B_r, self.config.B_c),
            "work": work,
            "decoding": None if self.decoding is None else self.decoding.to_dict(),
            "backward": None if self.backward is None else self.backward.to_dict(),
            **{name: getattr(self, name) for name in derived},
        }

    def _place(self) -> str:
        sms = "an unknown number of" if self.num_sms is None else str(self.num_sms)
        name = "a GPU nobody measured" if self.gpu is None else self.gpu.name
        place = f"{name}: {self.arch.name}, {sms} multiprocessors"
        if self.torch_computes:
            place += "; these tensors are on the CPU, where torch computes"
        return place

    def _configs(self) -> list[str]:
        config = self.config.short_form()
        if self.decoding is None:
            return [config]
        most = self.decoding.most_queries
        return [
            f"{config}, for sequences with over {most} queries",
            f"{self.decoding.config.short_form()}, for sequences with up to {most} queries",
        ]

    def _tiles(self) -> str:
        waves = "unknown, pass num_sms" if self.waves is None else f"{self.waves:.2f}"
        return f"{_tiles(self)}; waves: {waves}"

    def _work(self) -> str:
        most = "" if self.work.exact else "at most "
        tangents = " and their tangents" if isinstance(self.problem, TangentProblem) else ""
        return (
            f"{most}{self.work.flop / 1e9:,.3f} GFLOP, {self.work.num_bytes / 1e6:,.3f} MB of q, k,"
            f" v and o{tangents}: {self.work.intensity:,.1f} FLOP a byte"
        )

    def _roofline(self) -> str:
        if self.gpu is None:
            return f"unknown: nobody measured the peaks of this GPU ({self.arch.name})"
        return (
            f"{self.bound}: {self.compute_ms:.4f} ms at {self.matmul_tflops:.0f} TFLOP/s,"
            f" {self.memory_ms:.4f} ms at {self.gpu.copy_tb_s:.2f} TB/s"
        )


def _tiles(of: Explanation | Decoding) -> str:
    splits = f", their keys in {of.num_splits} splits" if of.num_splits else ""
    return f"{of.tiles:,} of {of.config.B_r} rows, key blocks of {of.config.B_c}{splits}"

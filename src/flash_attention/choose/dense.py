# SPDX-License-Identifier: Apache-2.0
"""DenseProblem: the problems that can be tuned, and the distance between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import ClassVar

import torch

from flash_attention.arch import Arch
from flash_attention.call.backward_call import ALL, BackwardProblem, Wanted
from flash_attention.call.backward_checks import views_of_pass
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.dtype import DType
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentProblem, views_with_tangents
from flash_attention.call.tensors import DTYPES, TensorView
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Recipe, Setting
from flash_attention.families.registry import family_of

SHARED_FIELDS = ("d_head", "d_v", "causal", "seq_q", "seq_k", "batch", "heads", "heads_k")
TILE_ROWS = 128  # query rows of a typical tile, to estimate how well a problem fills a GPU
TILES_WEIGHT = 0.5  # twice the tiles matter only if they do not fill the GPU yet
CPU = torch.device("cpu")
ANY_SMS = 1  # grids depend on the number of multiprocessors, and no kernel does


@dataclass(frozen=True, order=True)
class DenseProblem:
    """Full or causal attention of sequences of the same length."""

    dtype: DType
    d_head: int
    d_v: int
    causal: bool
    seq_q: int
    seq_k: int
    batch: int
    heads: int
    heads_k: int

    pass_: ClassVar[Pass] = Pass.FORWARD
    kind_words: ClassVar[str] = "data type, head dimension and mask"

    @classmethod
    def of(cls, problem: Problem) -> DenseProblem | None:
        """Convert a problem of any pass. Returns None if it has features besides a causal mask,
        if its tensors are not 16-bit, or if there is nothing to compute."""
        features = replace(problem.features, max_score=False)  # which suits every config
        if not features.dense or problem.idle or problem.dtype not in DTYPES:
            return None
        if problem.kv_dtype is not None:
            return None
        values = {name: getattr(problem, name) for name in SHARED_FIELDS}
        dtype = DType.from_string(str(problem.dtype))
        if isinstance(problem, TangentProblem):
            return DenseTangentProblem(dtype, **values)
        if not isinstance(problem, BackwardProblem):
            return DenseProblem(dtype, **values)
        if not any(problem.wanted):
            return None
        wanted, deterministic = problem.wanted, problem.deterministic
        return DenseBackwardProblem(dtype, **values, wanted=wanted, deterministic=deterministic)

    @classmethod
    def like(cls, problem: Problem) -> DenseProblem | None:
        """Return the problem whose tiles are as long as those of a forward pass with a function: a
        causal one if it has a mask. Returns None if it is not one, or has other features."""
        if problem.program is None or isinstance(problem, BackwardProblem):
            return None
        causal = problem.causal or problem.has_mask_function
        return cls.of(replace(problem, program=None, causal=causal))

    @property
    def problem(self) -> Problem:
        """The problem with the default softmax scale."""
        values = {name: getattr(self, name) for name in SHARED_FIELDS}
        dtype, scale = self.dtype.to_torch_dtype(), self.d_head**-0.5
        return Problem(**values, dtype=dtype, softmax_scale=scale)

    def recipe(self, config: KernelConfig, setting: Setting) -> Recipe:
        """Return how a config runs this problem with contiguous tensors."""
        dtype = self.dtype.to_torch_dtype()
        q, k, v = (
            torch.empty(self.batch, rows, heads, columns, dtype=dtype, device="meta")
            for rows, heads, columns in (
                (self.seq_q, self.heads, self.d_head),
                (self.seq_k, self.heads_k, self.d_head),
                (self.seq_k, self.heads_k, self.d_v),
            )
        )
        call = Call(q, k, v, causal=self.causal)
        _, views = check_call(call, CPU)
        of_pass = self._views_of_pass(call, views)
        recipe: Recipe = family_of(config).recipe(config, self.problem, of_pass, setting)
        return recipe

    def _views_of_pass(self, call: Call, views: list[TensorView]) -> Sequence[TensorView]:
        """Return the views that a recipe of the pass is made for, from those of the forward
        pass."""
        return views

    def refusal(self, config: KernelConfig, arch: Arch) -> str | None:
        """Say why a config does not run this problem on an architecture, or return None if it
        does."""
        if violation := config.broken_rule(arch):
            return violation.message
        try:
            self.recipe(config, Setting(arch, ANY_SMS))
        except UnsupportedError as error:
            return str(error)
        return None

    def compiled_for(self, config: KernelConfig) -> Features | DenseBackwardProblem:
        """Return all that the kernels of a config that run this problem depend on, besides the
        config and the architecture."""
        features: Features = family_of(config).features(config, self.problem)
        return features

    @property
    def kind(self) -> tuple[object, ...]:
        """What two problems must have in common for their configs to be comparable."""
        return self.pass_, self.dtype, self.d_head, self.d_v, self.causal

    @property
    def sort_key(self) -> tuple[int, DenseProblem]:
        """A key to sort problems of all passes, which do not compare with each other."""
        return list(Pass).index(self.pass_), self

    def distance(self, other: DenseProblem) -> float:
        """The doublings of the lengths, plus half the doublings of the number of tiles."""
        return (
            abs(log2(self.seq_q / other.seq_q))
            + abs(log2(self.seq_k / other.seq_k))
            + TILES_WEIGHT * abs(log2(self._tiles / other._tiles))
        )

    @property
    def _tiles(self) -> int:
        return self.batch * self.heads * ceil(self.seq_q / TILE_ROWS)

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        columns = f"{self.d_head}" if self.d_v == self.d_head else f"{self.d_head}/{self.d_v}"
        rows = f"{self.seq_q}" if self.seq_k == self.seq_q else f"{self.seq_q}/{self.seq_k}"
        heads = f"{self.heads}" if self.heads_k == self.heads else f"{self.heads}/{self.heads_k}"
        return f"{self.dtype.name} d {columns} {mask}, {self.batch} x {rows} rows x {heads} heads"


@dataclass(frozen=True, order=True)
class DenseBackwardProblem(DenseProblem):
    """The gradients of such attention: which of them, and whether their bits must repeat."""

    wanted: Wanted = ALL
    deterministic: bool = False

    pass_: ClassVar[Pass] = Pass.BACKWARD
    kind_words: ClassVar[str] = (
        "pass, data type, head dimension and mask, these gradients and this determinism"
    )

    @property
    def forward(self) -> DenseProblem:
        """The problem of the forward pass."""
        return DenseProblem(self.dtype, **{name: getattr(self, name) for name in SHARED_FIELDS})

    @property
    def problem(self) -> BackwardProblem:
        """The problem with the default softmax scale."""
        return BackwardProblem.of_pass(super().problem, self.wanted, self.deterministic)

    def _views_of_pass(self, call: Call, views: list[TensorView]) -> Sequence[TensorView]:
        return views_of_pass(call, views)

    def compiled_for(self, config: KernelConfig) -> DenseBackwardProblem:
        """Return the problem: the kernels before and after the main one depend on its sizes."""
        return self

    def units(self, config: KernelConfig, arch: Arch) -> tuple[Unit, ...]:
        """Return the translation units of the kernels that a config computes the gradients with, in
        the order of their launches."""
        return tuple(step.unit for step in self.recipe(config, Setting(arch, ANY_SMS)).steps)

    @property
    def kind(self) -> tuple[object, ...]:
        return *super().kind, self.wanted, self.deterministic

    def __str__(self) -> str:
        names = [name for name, wanted in self.wanted._asdict().items() if wanted]
        only = "" if self.wanted == ALL else f" of {' and '.join(names)}"
        repeats = ", deterministic" if self.deterministic else ""
        return f"{super().__str__()}, backward{only}{repeats}"


@dataclass(frozen=True, order=True)
class DenseTangentProblem(DenseProblem):
    """Such attention, and the tangent of its output."""

    pass_: ClassVar[Pass] = Pass.TANGENT
    kind_words: ClassVar[str] = "pass, data type, head dimension and mask"

    @property
    def problem(self) -> TangentProblem:
        """The problem with the default softmax scale."""
        return TangentProblem.of_pass(super().problem)

    def _views_of_pass(self, call: Call, views: list[TensorView]) -> Sequence[TensorView]:
        return views_with_tangents(views)

    def __str__(self) -> str:
        return f"{super().__str__()}, tangent"


DENSE: dict[Pass, type[DenseProblem]] = {
    kind.pass_: kind for kind in (DenseProblem, DenseBackwardProblem, DenseTangentProblem)
}
"""The problems of each pass that can be tuned."""

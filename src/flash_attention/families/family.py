# SPDX-License-Identifier: Apache-2.0
"""Family: everything about the kernels of one architecture and pass.

Outside of this folder nobody asks which family a config is of: `family_of(config)` is asked
instead. CONTRIBUTING.md shows a family that is complete in under sixty lines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

import torch

from flash_attention.arch import Arch
from flash_attention.call.dtype import DType
from flash_attention.call.features import PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import DTYPES, OF_QUERIES, TensorView
from flash_attention.call.transposed import KEYS
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.fields import declarations
from flash_attention.families.fit import ALIGNMENT, memory_refusal
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import AnyKvSplits, Recipe, Setting
from flash_attention.families.values import Violation

Config = TypeVar("Config", bound=KernelConfig)


class Family(ABC, Generic[Config]):
    """The kernels of one architecture and pass: configs, features, recipes, heuristic and search
    space. A family of backward kernels gets a BackwardProblem, one of tangents a TangentProblem."""

    name: ClassVar[str]  # of the oldest architecture that runs them
    pass_: ClassVar[Pass] = Pass.FORWARD
    config_type: type[Config]
    inputs: ClassVar[tuple[torch.dtype, ...]] = DTYPES  # element types of q, and of k and v
    kv_inputs: ClassVar[tuple[torch.dtype, ...]] = ()  # other element types of k and v
    takes_transposed_v: ClassVar[bool] = False  # v may have contiguous keys
    drops: ClassVar[bool] = False  # kernels have dropout
    has_functions: ClassVar[bool] = False  # kernels have users' score and mask functions
    gathers: ClassVar[bool] = False  # backward kernels have gradients of what functions read
    keeps_max: ClassVar[bool] = False  # kernels return the largest score of every head
    alignment: ClassVar[int] = ALIGNMENT  # bytes that tensors and their rows start on
    strength: ClassVar[str] = "were registered later"  # unlike others of their architecture

    # names

    def parse(self, tile: Sequence[str], words: Sequence[str]) -> Config:
        """Return the config with these `tile()` and `words()`."""
        return self.config_type.from_words(tile, words)

    def parse_name(self, name: str) -> Config | None:
        """Return the config whose `kernel_name()` starts a name, or None if there is none."""
        return self.config_type.from_name(name)

    # running

    @abstractmethod
    def resolve(self, config: Config, features: Features) -> Features:
        """Resolve the required features into features of this family's kernels.

        Raises UnsupportedError for what kernels of the config do not have, and for what would make
        them ignore a field of the config.
        """

    def features(
        self, config: Config, problem: Problem, return_lse: bool = False, split: AnyKvSplits = None
    ) -> Features:
        """Return the resolved features of the kernel that runs a problem."""
        return self.resolve(config, problem.features)

    @abstractmethod
    def unit(self, config: Config, features: Features, arch: Arch) -> Unit:
        """Return the translation unit of a config with resolved features."""

    def stores_tiles(self, problem: Problem, config: Config | None) -> bool:
        """Whether kernels of a config, or of the one that is chosen if it is None, can store tiles
        of dS as the gradient of a captured tensor."""
        return False

    def companions(self, config: Config, arch: Arch) -> list[Unit]:
        """Return kernels that run beside those of a config. `build` compiles them too."""
        return []

    @abstractmethod
    def recipe(
        self, config: Config, problem: Problem, views: Sequence[TensorView], setting: Setting
    ) -> Recipe:
        """Return how a valid config runs a problem. Raises UnsupportedError if it cannot.

        `views` are of q, k, v and the output, all with a batch dimension. For a backward pass they
        are of do, q, k, v, o, dq, dk and dv. For tangents those of q, k and v follow.
        """

    def split(self, config: Config, problem: Problem, keys: int) -> AnyKvSplits:
        """Make KV splits of `keys` keys, for a config that the caller chose."""
        raise UnsupportedError(
            f"split_keys is given, and {self.config_type.__name__} kernels visit all keys of a row"
            " in one go; leave split_keys out, or pass a HopperForwardKernelConfig"
        )

    # limits, whatever the config

    def widest(self) -> int:
        """Return the largest head dimension that kernels have."""
        declared = declarations(self.config_type).get("d_head")
        return 0 if declared is None or not declared.values else max(declared.values)

    def takes_columns(self, d_head: int, d_v: int) -> bool:
        """Whether kernels have head dimensions as large as these."""
        return max(d_head, d_v) <= self.widest()

    def column_hint(self, d_head: int) -> str:
        """Say with which other v kernels take a head dimension, for a call that no kernel takes."""
        return ""

    def refusal(self, problem: Problem, views: Sequence[TensorView]) -> str | None:
        """Say why no kernel reads or writes tensors of these shapes and strides, or return None.
        `views` are those of `recipe`."""
        refusals = (self._dropout_refusal, self._max_refusal, self._function_refusal)
        if why := next(filter(None, (refusal(problem) for refusal in refusals)), None):
            return why
        for view in views:
            total = problem.total_q if view.name in OF_QUERIES else problem.total_k
            transposed = problem.v_transposed and view.name == "v"
            why = memory_refusal(
                view,
                packed=total is not None,
                contiguous=KEYS if transposed else -1,
                alignment=self.alignment,
            )
            if why is not None:
                return why
        return None

    def _dropout_refusal(self, problem: Problem) -> str | None:
        if not problem.dropout_p:
            return None
        given, instead = f"dropout_p is {problem.dropout_p:g}", "pass 0.0, as in evaluation"
        return self._lacks("dropout", problem, given, instead, has=self.drops)

    def _max_refusal(self, problem: Problem) -> str | None:
        if not problem.return_max:
            return None
        given, instead = "return_max is given", "leave it out"
        return self._lacks("maxima", problem, given, instead, has=self.keeps_max)

    def _lacks(
        self,
        what: str,
        problem: Problem,
        given: str,
        instead: str,
        *,
        has: bool,
        has_paged: bool = False,
    ) -> str | None:
        """Say that kernels do not have what is asked for, at all or with this problem."""
        named = f"{given}, and {self.config_type.__name__} kernels have"
        if not has:
            return f"{named} no {what}; {instead}"
        if not self.takes_columns(problem.d_head, problem.d_v):
            return f"{named} head dimensions up to {self.widest()}"
        is_paged = problem.page_keys > 0 and not has_paged
        if is_paged or problem.kv_8_bit:
            beside = "block_table" if is_paged else "k and v of 8 bits"
            return f"{named} no {what} with {beside}; {instead}"
        return None

    def _function_refusal(self, problem: Problem) -> str | None:
        if problem.program is None:
            return None
        if problem.program.gathered and not self.gathers:
            given, instead = "a captured tensor requires grad", "capture tensor.detach()"
            return self._lacks("gradients of it", problem, given, instead, has=False)
        given = "a score or mask function is given"
        instead = "use the CPU, or leave it out"
        return self._lacks(
            *("functions", problem, given, instead),
            has=self.has_functions,
            has_paged=True,
        )

    # choosing

    def is_for(self, problem: Problem) -> bool:
        """Whether kernels are for problems of this kind, whether or not they run this one."""
        types = problem.dtype in self.inputs and problem.kv_dtype in (None, *self.kv_inputs)
        return types and (self.takes_transposed_v or not problem.v_transposed)

    def heuristic(self, problem: Problem, arch: Arch) -> Config | str:
        """Return the config for a problem that was not tuned, or why there is none. If the problem
        is batch-invariant, one config is for all lengths, and its rows do not depend on others."""
        return f"{self.config_type.__name__} kernels run where a config asks for them"

    def why(self, config: Config, problem: Problem, split: AnyKvSplits) -> str:
        """Say on what grounds the heuristic or `choose_split` chose the config."""
        mask = "full" if problem.features.mask is MaskKind.FULL else "masked"
        return f"d_head {config.d_head}, {mask}"

    splits_keys: ClassVar[bool] = False

    def choose_split(
        self, problem: Problem, arch: Arch, num_sms: int, split_keys: int | None
    ) -> tuple[Config, AnyKvSplits] | str:
        """Return a config and a split of the keys for decoding, or why there is none."""
        return f"{self.config_type.__name__} kernels do not split keys"

    def few_queries(self, problem: Problem, mixed: bool | None = None) -> int:
        """Return how many queries the sequences have at most that a kernel for decoding computes
        beside the kernel for the others, or 0 if one kernel computes all. With `mixed` two kernels
        do wherever they can, and one does if it is False."""
        return 0

    # tuning

    extrapolates: ClassVar[bool] = False  # the best config of a problem suits its neighbours

    def built_features(self) -> tuple[Features, ...]:
        """Return the features that `build` compiles a config with."""
        return (PLAIN,)

    def search_space(self) -> Iterator[Config]:
        """Yield the configs that a tuner starts with, for every data type and head dimension."""
        return iter(())

    def combinations(self, dtype: DType, d_head: int) -> Iterator[Config | Violation]:
        """Yield the configs that a tuner starts with at a data type and a head dimension. For every
        combination of values that is left out, yield the rule that it breaks."""
        return (c for c in self.search_space() if (c.dtype, c.d_head) == (dtype, d_head))

    def likeliest_first(self, first: Config, configs: Iterable[Config]) -> list[Config]:
        """Sort configs into the order in which they are tried. `first` is the heuristic's."""
        return list(configs)

    def neighbours(self, config: Config) -> list[Config]:
        """Return the valid configs one step away, if there are any outside of the search space."""
        return []

    def suits(self, config: Config, problem: Problem) -> bool:
        """Whether a config is worth a measurement for a problem."""
        return True

    def has_room(self, config: Config, problem: Problem) -> bool:
        """Whether a config that is fast without a user's function is so with that of a problem."""
        return True

    def reaches(self, config: Config, problem: Problem, arch: Arch) -> bool:
        """Whether tiles of a config that is the best of a near problem fit this one as well."""
        return True

    def fitted(self, config: Config, problem: Problem, source: Problem | None = None) -> Config:
        """Return the config with the numbers that depend on the size of a problem. If `source` is
        given, they are scaled from that problem."""
        return config

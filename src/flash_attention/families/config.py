# SPDX-License-Identifier: Apache-2.0
"""KernelConfig: the base class of the configs of all families."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard, TypeVar

from flash_attention.arch import ARCHES, ROOMIEST_ARCH, Arch
from flash_attention.call.dtype import DType
from flash_attention.compile.binding import Binding, Number, headers, render_struct
from flash_attention.errors import KernelConfigError
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.fields import bindings_of
from flash_attention.families.short_form import read, read_name, tile_of, write_words
from flash_attention.families.values import Violation, unmet_needs, wrong_values

if TYPE_CHECKING:
    from typing_extensions import Self

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, order=True)
class KernelConfig(ABC):
    """The compile-time choices of one kernel: a frozen, ordered dataclass of a family.

    One that breaks a rule on every architecture cannot be made. Short forms, names, checks of
    values and bindings follow from the declarations of the fields.
    """

    oldest_arch: ClassVar[Arch]  # of the family
    prefix: ClassVar[str]  # of the short form, which tells the families apart
    name_tile: ClassVar[str] = ""  # the tile in the kernel's name, members in braces

    def __post_init__(self) -> None:
        violation = self.first_violation(self.oldest_arch)
        if violation and self.first_violation(ROOMIEST_ARCH):
            raise KernelConfigError(violation.message, rule=violation.rule)

    def __str__(self) -> str:
        return self.short_form()

    if TYPE_CHECKING:  # fields or properties of every config

        @property
        def dtype(self) -> DType: ...
        @property
        def d_head(self) -> int: ...
        @property
        def B_r(self) -> int: ...
        @property
        def B_c(self) -> int: ...
        @property
        def num_threads(self) -> int: ...
        @property
        def computing_warps(self) -> int: ...

    @property
    def row_stride(self) -> int:
        """The row stride that is compiled in, in elements; 0 for any."""
        return 0

    @property
    def visits_descending(self) -> bool:
        """Whether key blocks are visited from the last to the first."""
        return False

    @property
    def input_dtype(self) -> torch.dtype:
        """The element type of q."""
        return self.dtype.to_torch_dtype()

    @property
    def kv_dtype(self) -> torch.dtype:
        """The element type of k and v."""
        return self.input_dtype

    @property
    def value_columns(self) -> int:
        """The columns of the product with V in the main loop."""
        return self.d_head

    @property
    def v_in_k(self) -> bool:
        """Whether v is the first columns of the only head of k."""
        return False

    @property
    def v_transposed(self) -> bool:
        """Whether the keys of v are contiguous, and not its columns."""
        return False

    @property
    def loaded_columns(self) -> int:
        """The columns of K and V together that the main loop loads."""
        return self.d_head if self.v_in_k else 2 * self.d_head

    @property
    def loop_products(self) -> tuple[int, int]:
        """The products of a block of scores in the main loop, and the warps that share them."""
        return 2, self.computing_warps

    @property
    def register_facts(self) -> dict[str, int]:
        """The registers per thread of each role, if roles differ."""
        return {}

    def in_dtype(self, dtype: DType) -> KernelConfig:
        """Return the same config for another element type."""
        return replace(self, **{"dtype": dtype})

    # validity

    def first_violation(self, arch: Arch) -> Violation | None:
        """Return the first rule that the config breaks on `arch`, or None."""
        return next(self.violations(arch), None)

    def violations(self, arch: Arch) -> Iterator[Violation]:
        """Yield the rules that the config breaks on `arch`: what is declared, then `rules`."""
        yield from wrong_values(self)
        yield from unmet_needs(self)
        yield from self.rules(arch)

    def rules(self, arch: Arch) -> Iterator[Violation]:
        """Yield the rules between several fields that the config breaks on `arch`. Every field has
        one of its values."""
        return iter(())

    @property
    def default_arch(self) -> Arch:
        """The oldest architecture that the config is valid on. It is meant when none is given and
        there is no GPU."""
        if self.first_violation(self.oldest_arch) is None:
            return self.oldest_arch
        valid = (arch for arch in ARCHES.values() if self.first_violation(arch) is None)
        return next(valid, self.oldest_arch)

    def broken_rule(self, arch: Arch | None = None) -> Violation | None:
        """The first rule that this config breaks on `arch`, or on its default one."""
        return self.first_violation(arch or self.default_arch)

    def check(self, arch: Arch | None = None) -> None:
        """Raise KernelConfigError, naming the rule, unless the config is valid."""
        if violation := self.broken_rule(arch):
            raise KernelConfigError(violation.message, rule=violation.rule)

    # resources

    def target(self, arch: Arch) -> str:
        """Return the target that NVRTC compiles for to run on `arch`."""
        return arch.name

    def smem_bytes(self, elem_size: int = 2) -> int:
        """Dynamic shared memory of a CTA, with elements of so many bytes."""
        return 0

    def num_ctas_per_sm(
        self, max_smem_bytes: int | None = None, *, arch: Arch | None = None, registers: int = 0
    ) -> int:
        """Resident CTAs on one SM of `arch`, or with so much shared memory in all; give the
        compiled kernel's `registers` to count them too."""
        arch = arch or self.default_arch
        if max_smem_bytes is not None:
            arch = replace(arch, smem_per_sm=max_smem_bytes)
        return arch.ctas_per_sm(
            threads=self.num_threads, smem_bytes=self.smem_bytes(), registers=registers
        )

    # names

    def tile(self) -> tuple[int | str, ...]:
        """Return the values in the parentheses of the short form."""
        _, *numbers = tile_of(type(self))
        return self.dtype.name, *(getattr(self, name) for name in numbers)

    def words(self) -> list[str]:
        """Return the words after the colon of the short form."""
        return write_words(self)

    @classmethod
    def from_words(cls, tile: Sequence[str], words: Sequence[str]) -> Self:
        """Return the config with this `tile()` and these `words()`."""
        return cls(**read(cls, tile, words))

    def kernel_name(self) -> str:
        """Return a name for folders and logs, of letters, digits and underscores."""
        if not self.name_tile:
            return re.sub(r"\W+", "_", self.short_form())
        numbers = {name: getattr(self, name) for name in re.findall(r"{(\w+)}", self.name_tile)}
        tile = self.name_tile.format_map(numbers | {"dtype": self.dtype.name.lower()})
        return "_".join(filter(None, (self.prefix, tile, *self.words())))

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        """Return the config whose `kernel_name()` starts a name, or None if there is none."""
        prefix = f"{cls.prefix}_" if cls.prefix else ""
        found = read_name(cls, prefix + cls.name_tile, name) if cls.name_tile else None
        if found is None:
            return None
        parts, words = found
        numbers = cls._numbers_of_name(
            {name: int(n) for name, n in parts.items() if name != "dtype"}
        )
        _, *names = tile_of(cls)
        return cls.from_words([parts["dtype"], *(str(numbers[name]) for name in names)], words)

    @classmethod
    def _numbers_of_name(cls, numbers: dict[str, int]) -> dict[str, int]:
        """Return the fields of a tile, given the numbers in `name_tile`."""
        return numbers

    def short_form(self) -> str:
        """The config in one line that `parse_kernel_config` reads back."""
        return _short_form(self)

    # the C++ side

    def bindings(self) -> tuple[Binding, ...]:
        """What `struct Config` says of this config, features aside: numbers, then types."""
        bound = (*bindings_of(self), *self.derived_bindings())
        return (
            dtype_binding(self.dtype),
            *(each for each in bound if isinstance(each, Number)),
            *(each for each in bound if not isinstance(each, Number)),
        )

    def derived_bindings(self) -> tuple[Binding, ...]:
        """What follows from several fields, or is the same for all configs of the family."""
        return ()

    def to_cpp_struct(self) -> str:
        """This config as the C++ `struct Config` of its translation unit, features left out."""
        return render_struct(self.bindings())

    def headers(self) -> list[str]:
        """Return the headers of the variants that the config names."""
        return headers(self.bindings())

    # arithmetic

    def attn_flop(self, batch: int, heads: int, seq_q: int, seq_k: int | None = None) -> int:
        """FLOP of the two products, as everyone counts them: 4 b h sq sk d."""
        return 4 * batch * heads * seq_q * (seq_q if seq_k is None else seq_k) * self.d_head

    def total_flop(self, batch: int, heads: int, seq_q: int, seq_k: int | None = None) -> int:
        """All floating-point work of the tiles: the products, the softmax, the rescaling of O.

        A score costs 5 (scale, subtract, exponential, maximum, sum); a row costs d_head + 3 a key
        block (O and the sum rescaled, the factor itself) and d_head once to normalise.
        """
        seq_k = seq_q if seq_k is None else seq_k
        rows = batch * heads * seq_q
        softmax = 5 * rows * seq_k
        rescale = rows * (-(-seq_k // self.B_c)) * (self.d_head + 3)
        products = self.attn_flop(batch, heads, seq_q, seq_k)
        return products + softmax + rescale + rows * self.d_head


Config = TypeVar("Config", bound=KernelConfig)


def changed(config: Config, **changes: Any) -> Config | None:
    """The config with some fields changed; None if no architecture has such a kernel."""
    try:
        return replace(config, **changes)
    except KernelConfigError:
        return None


def is_config(config: object) -> TypeGuard[KernelConfig]:
    """Whether something is a config of some family."""
    return isinstance(config, KernelConfig)


def _short_form(config: KernelConfig) -> str:
    return f"{config.prefix}({', '.join(map(str, config.tile()))}): {'+'.join(config.words())}"


# torch.compile takes the text as a constant: it does not follow how fields are declared.
_short_form._dynamo_marked_constant = True  # type: ignore[attr-defined]

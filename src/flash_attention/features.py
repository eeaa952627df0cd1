# SPDX-License-Identifier: Apache-2.0
"""Features: what a problem asks of the kernel's code, beside what its config chose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flash_attention.kernel_configs.binding import Binding, Variant
from flash_attention.kernel_configs.hopper_forward import WARP_ROWS, WARPGROUP_ROWS


class MaskKind(Enum):
    """Which keys a query sees; the value is the name of the C++ type."""

    FULL = "Full"
    CAUSAL = "Causal"
    WINDOW = "Window"


class SplitKind(Enum):
    """Which keys of its rows a CTA visits; the value is the name of the C++ type.

    In all but WHOLE they are some, and another kernel combines the parts.
    """

    WHOLE = "Whole"
    CHUNKED = "Chunked"
    EVEN = "Even"


SHORT_QUERIES = {
    SplitKind.WHOLE: {"TileOrder": "OneEach", "Output": "Direct"},
    SplitKind.CHUNKED: {"TileOrder": "OneEach", "Output": "Parts"},
    SplitKind.EVEN: {"TileOrder": "Dealt", "Output": "Parts"},
}
"""How tiles of heads side by side, or of splits, are walked and how their output leaves."""


@dataclass(frozen=True)
class Features:
    """The types that a problem binds in a kernel."""

    mask: MaskKind = MaskKind.FULL
    softcap: bool = False
    per_batch: bool = False  # batch entries have lengths of their own
    heads_together: int = 1  # heads of q side by side in a tile, which share one of k and v
    few_queries: bool = False  # one tile holds those of all the heads that share one of k and v
    splits: SplitKind = SplitKind.WHOLE
    page_keys: int = 0  # rows of a page that a table names; 0: keys are contiguous
    sinks: bool = False  # every row sees one more score, that of its head
    guarded: bool = False  # first family: look at bounds, though nothing above asks for it

    def bind_first_family(self, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        """The bindings of a config of the first family, and those of the features."""
        bounds = Variant("Bounds", "sm80/bounds", "Guarded" if self.looks_at_bounds else "Exact")
        return (*bindings, *self._shared, bounds)

    @property
    def looks_at_bounds(self) -> bool:
        """Whether a kernel of the first family looks where tensors end, and at the ends of rows."""
        return self.guarded or self.mask is not MaskKind.FULL or self.per_batch or self.sinks

    @property
    def _shared(self) -> tuple[Binding, ...]:
        """What both families bind."""
        return (
            Variant("Mask", "attn/mask", self.mask.value),
            Variant("Score", "attn/score", "Softcap" if self.softcap else "Plain"),
            Variant("Lengths", "attn/lengths", "PerBatch" if self.per_batch else "Same"),
            Variant("Sinks", "attn/sinks", "PerHead" if self._ends_with_sink else "None"),
        )

    @property
    def _ends_with_sink(self) -> bool:
        """Parts of a row do not: who combines them adds the sink, once."""
        return self.sinks and self.splits is SplitKind.WHOLE

    def bind_hopper(self, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        """The bindings of a config of the Hopper family, and those of the features."""
        own = (
            *self._shared,
            self.rows(),
            Variant("Splits", "sm90/splits", self.splits.value),
            Variant("Pages", "sm90/pages", "Paged", self.page_keys)
            if self.page_keys
            else Variant("Pages", "sm90/pages", "Contiguous"),
        )
        return (*(self._replaced(binding) for binding in bindings), *own)

    @property
    def q_box(self) -> tuple[int, int]:
        """Heads and queries of a box of q, a warpgroup's rows."""
        return self.heads_together, WARPGROUP_ROWS // self.heads_together

    @property
    def o_box(self) -> tuple[int, int]:
        """Heads and queries of a box of o, a warp's rows; unless they are whole queries, no box is
        stored."""
        heads = self.heads_together if WARP_ROWS % self.heads_together == 0 else 1
        return heads, WARP_ROWS // heads

    def box_keys(self, block_keys: int) -> int:
        """Keys of a box of k or v: a block of them, or as many as lie in a page."""
        return min(block_keys, self.page_keys or block_keys)

    @property
    def short_queries(self) -> bool:
        """Whether few queries meet many keys, each of which is then read once."""
        return self.few_queries or self.splits is not SplitKind.WHOLE

    def rows(self) -> Variant:
        """Which queries and heads the rows of a tile are."""
        if self.heads_together > 1:
            return Variant("Rows", "attn/rows", "GroupedHeads", self.heads_together)
        return Variant("Rows", "attn/rows", "OneHead")

    def _replaced(self, binding: Binding) -> Binding:
        """Heads side by side and splits are walked in an order of their own and leave in another
        way; entries of their own lengths are walked in another order."""
        if not isinstance(binding, Variant):
            return binding
        if self.short_queries:
            own = SHORT_QUERIES[self.splits]
        else:
            own = {"TileOrder": "Packed"} if self.per_batch else {}
        name = own.get(binding.slot)
        return Variant(binding.slot, binding.folder, name) if name else binding

    def words(self) -> list[str]:
        """What sets these features apart from plain attention."""
        words = {
            self.mask.name.lower(): self.mask is not MaskKind.FULL,
            "softcap": self.softcap,
            "per_batch": self.per_batch,
            f"heads_{self.heads_together}": self.heads_together > 1,
            "few": self.few_queries and self.splits is SplitKind.WHOLE,
            self.splits.name.lower(): self.splits is not SplitKind.WHOLE,
            f"page_{self.page_keys}": self.page_keys > 0,
            "sinks": self.sinks,
            "guarded": self.guarded,
        }
        return [word for word, on in words.items() if on]

    @property
    def suffix(self) -> str:
        """What the name of a kernel ends with: "_causal_softcap"; of plain attention, nothing."""
        return "".join(f"_{word}" for word in self.words())


PLAIN = Features()
CAUSAL = Features(MaskKind.CAUSAL)

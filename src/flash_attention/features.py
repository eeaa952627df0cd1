# SPDX-License-Identifier: Apache-2.0
"""Features: what a problem asks of the kernel's code, beside what its config chose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flash_attention.kernel_configs.binding import Binding, Variant


class MaskKind(Enum):
    """Which keys a query sees; the value is the name of the C++ type."""

    FULL = "Full"
    CAUSAL = "Causal"
    WINDOW = "Window"


@dataclass(frozen=True)
class Features:
    """The types that a problem binds in a kernel of the Hopper family."""

    mask: MaskKind = MaskKind.FULL
    softcap: bool = False
    per_batch: bool = False  # batch entries have lengths of their own

    def bind(self, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        """A config's bindings with those of the features; entries of their own lengths are walked
        in an order of their own."""
        own = (
            Variant("Mask", "attn/mask", self.mask.value),
            Variant("Score", "attn/score", "Softcap" if self.softcap else "Plain"),
            Variant("Lengths", "attn/lengths", "PerBatch" if self.per_batch else "Same"),
        )
        return (*(self._ordered(binding) for binding in bindings), *own)

    def _ordered(self, binding: Binding) -> Binding:
        if self.per_batch and isinstance(binding, Variant) and binding.slot == "TileOrder":
            return Variant("TileOrder", "sm90/tile_order", "Packed")
        return binding

    def words(self) -> list[str]:
        """What sets these features apart from plain attention."""
        words = {
            self.mask.name.lower(): self.mask is not MaskKind.FULL,
            "softcap": self.softcap,
            "per_batch": self.per_batch,
        }
        return [word for word, on in words.items() if on]

    @property
    def suffix(self) -> str:
        """What the name of a kernel ends with: "_causal_softcap"; of plain attention, nothing."""
        return "".join(f"_{word}" for word in self.words())


PLAIN = Features()
CAUSAL = Features(MaskKind.CAUSAL)

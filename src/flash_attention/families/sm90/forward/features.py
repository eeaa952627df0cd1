# SPDX-License-Identifier: Apache-2.0
"""The features of Hopper kernels, and the C++ types that they bind."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from math import gcd

from flash_attention.call.features import Features
from flash_attention.call.results import DESCALED_KEYS
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.errors import UnsupportedError
from flash_attention.families.bindings import max_score_binding, shared_bindings
from flash_attention.families.sm90.forward.bias import bias_bytes
from flash_attention.families.sm90.forward.config import (
    BARRIER_BYTES,
    WARP_ROWS,
    WARPGROUP_ROWS,
    HopperForwardKernelConfig,
    tile_rows,
)
from flash_attention.families.sm90.forward.tile_order import TileOrder

GROUP_KEYS = 8  # after which the swizzle of a tile repeats; warps copy the rows of smaller boxes
LARGE_BOX_KEYS = 16  # boxes of fewer keys are loaded with entries of the block table read ahead


class SplitKind(Enum):
    """How the keys are split between CTAs. The value is the name of the C++ type.

    Unless it is WHOLE, the partial results are combined by the last CTA of a tile, or by another
    kernel.
    """

    WHOLE = "Whole"
    FIXED = "Fixed"
    EVEN = "Even"
    ON_DEVICE = "OnDevice"  # stream-K by the lengths of the sequences, which the device reads


class Walk(Enum):
    """Which CTA computes which tile. The value is the name of the C++ type."""

    ONE_EACH = "OneEach"
    PERSISTENT = "Persistent"
    DYNAMIC = "Dynamic"
    PACKED = "Packed"  # DYNAMIC for sequences that differ in length
    STREAM_K = "StreamK"  # each CTA has as many key blocks, of one tile or of several
    ON_DEVICE = "OnDevice"  # STREAM_K for sequences that differ in length

    @property
    def counts_tiles(self) -> bool:
        """Whether CTAs take tiles from a counter in global memory."""
        return self in (Walk.DYNAMIC, Walk.PACKED)


@dataclass(frozen=True)
class Sm90Features(Features):
    """The required features, and how the tiles of a Hopper kernel implement them."""

    heads_together: int = 1  # heads of q that share a tile, and a head of k and v
    decode: bool = False  # one tile holds all heads that share a head of k and v
    splits: SplitKind = SplitKind.WHOLE
    one_launch: bool = False  # the last CTA of a tile combines its partial results
    whole_rows: bool = False  # a box of a paged KV cache has all columns of its keys
    listed: bool = False  # tiles visit the blocks that a mask function shows
    nearest_first: bool = False  # tiles visit all blocks, the nearest to their queries first
    bias: bool = False  # TMA loads a captured tensor beside K

    @property
    def is_decode(self) -> bool:
        """Whether the kernel is one for decoding, which reads each key once."""
        return self.decode or self.splits is not SplitKind.WHOLE

    @property
    def is_split(self) -> bool:
        """Whether the kernel stores partial results, which are combined afterwards."""
        return self.splits is not SplitKind.WHOLE

    def queries_of(self, rows: int) -> int:
        return tile_rows(rows // WARPGROUP_ROWS, self.heads_together) // self.heads_together

    def words(self) -> list[str]:
        words = {
            f"heads_{self.heads_together}": self.heads_together > 1,
            "decode": self.decode and not self.is_split,
            self.splits.name.lower(): self.is_split,
            "one_launch": self.one_launch,
            "whole_rows": self.whole_rows,
            "listed": self.listed,
            "nearest_first": self.nearest_first,
            "bias": self.bias,
        }
        return [*super().words(), *(word for word, on in words.items() if on)]

    def rows(self) -> Variant:
        """The variant that maps rows of a tile to queries and heads."""
        if self.heads_together > 1:
            return Variant("Rows", "attn/rows", "GroupedHeads", self.heads_together)
        return Variant("Rows", "attn/rows", "OneHead")

    @property
    def q_box(self) -> tuple[int, int]:
        """The heads and queries of a TMA box of q, which holds the rows of a warpgroup."""
        return self.heads_together, WARPGROUP_ROWS // self.heads_together

    @property
    def o_box(self) -> tuple[int, int]:
        """The heads and queries of a TMA box of o, which holds the rows of a warp. It is not used
        unless these are whole queries."""
        heads = self.heads_together if WARP_ROWS % self.heads_together == 0 else 1
        return heads, WARP_ROWS // heads

    def box_keys(self, block_keys: int) -> int:
        """Return the keys of a TMA box of k or v, which lies in one key block and one page."""
        return gcd(block_keys, self.page_keys)

    def walk(self, order: TileOrder) -> Walk:
        """Return the order in which the tiles of a kernel are computed: `order`, unless the lengths
        or the splits ask for another."""
        if self.is_decode:
            orders = {SplitKind.EVEN: Walk.STREAM_K, SplitKind.ON_DEVICE: Walk.ON_DEVICE}
            return orders.get(self.splits, Walk.ONE_EACH)
        return Walk.PACKED if self.per_batch else Walk[order.name]

    def pages(self, block_keys: int) -> Variant:
        """The variant with which one thread loads a block of keys."""
        if not self.page_keys:
            return Variant("Pages", "sm90/pages", "Contiguous")
        small = self.box_keys(block_keys) < LARGE_BOX_KEYS
        return Variant("Pages", "sm90/pages", "SmallPaged" if small else "Paged", self.page_keys)

    def smem_bytes(self, config: HopperForwardKernelConfig) -> int:
        """Return the bytes of dynamic shared memory of a CTA."""
        return config.smem_bytes() + (bias_bytes(config) if self.bias else 0)

    def bindings(self, config: HopperForwardKernelConfig) -> tuple[Binding, ...]:
        """Return the C++ types that the features bind."""
        # What combines partial results adds the sink of a row, so that it is added once. With
        # splits on the device, some rows have no partial results.
        may_end = not self.is_split or self.splits is SplitKind.ON_DEVICE
        shared = shared_bindings(
            self,
            sinks=self.sinks and may_end,
            listed=self.listed,
            nearest_first=self.nearest_first,
        )
        splits = Variant("Splits", "sm90/splits", self.splits.value)
        numbers = self._host_numbers(config)
        own: tuple[Binding, ...] = (*shared, self.rows(), splits, self._pages(config), *numbers)
        if not config.specialised:
            return own
        order = Variant("TileOrder", "sm90/tile_order", self.walk(config.tile_order).value)
        output = Variant("Output", "sm90/output", self._output(config))
        descale = Variant("Descale", "sm90/descale", self._descale(config))
        bias = Variant("Bias", "sm90/bias", "Loaded" if self.bias else "None")
        return (order, output, descale, bias, max_score_binding(self), *own)

    def _pages(self, config: HopperForwardKernelConfig) -> Variant:
        """The variant that loads a block of keys. Whole warps load pages."""
        if not self.page_keys:
            return Variant("Pages", "sm90/pages", "Contiguous")
        if self.box_keys(config.B_c) % GROUP_KEYS:
            loaded = "CopiedRows"
        else:
            loaded = "GroupBoxes" if self.whole_rows else "PanelBoxes"
        return Variant("Pages", "sm90/pages", loaded, self.page_keys)

    def _host_numbers(self, config: HopperForwardKernelConfig) -> tuple[Number, ...]:
        """Return the numbers that launches and tensor maps use too. The headers assert them."""
        (q_heads, q_queries), (o_heads, o_queries) = self.q_box, self.o_box
        numbers = {
            "warpgroup_rows": WARPGROUP_ROWS,
            "warp_rows": WARP_ROWS,
            "tile_rows": tile_rows(config.consumers, self.heads_together),
            "barrier_bytes": BARRIER_BYTES,
            "smem_bytes": self.smem_bytes(config),
            "panel_columns": config.panel_columns,
            "q_box_heads": q_heads,
            "q_box_queries": q_queries,
            "o_box_heads": o_heads,
            "o_box_queries": o_queries,
            "box_keys": self.box_keys(config.B_c),
        }
        return tuple(Number(name, value) for name, value in numbers.items())

    def _descale(self, config: HopperForwardKernelConfig) -> str:
        if not config.kv_8_bit:
            return "None"
        return "PerBlock" if self.block_descales else "PerHead"

    def _output(self, config: HopperForwardKernelConfig) -> str:
        if self.splits is SplitKind.ON_DEVICE:
            return "WholeOrCombined"
        if self.is_decode:
            partial = "Combined" if self.one_launch else "Partial"
            return partial if self.is_split else "Direct"
        if config.direct_output:
            return "Direct"
        return "OwnBuffer" if config.own_output else "OverQueries"


def resolve(config: HopperForwardKernelConfig, features: Features) -> Sm90Features:
    """Resolve the features for a Hopper kernel.

    Raises UnsupportedError for features that kernels of the config do not have, and for those with
    which a field of the config would have no effect.
    """
    asked = {field.name: getattr(features, field.name) for field in fields(features)}
    resolved = Sm90Features(**asked)
    asks_to_split = resolved.is_split and resolved.splits is not SplitKind.ON_DEVICE
    words = [*features.in_words(), *(["split_keys"] if asks_to_split else [])]
    said = f"{', '.join(words)} {'is' if len(words) == 1 else 'are'} asked for"
    tiles_of_one_head = resolved.heads_together == 1 and not resolved.is_decode
    if not config.specialised and not (tiles_of_one_head and replace(resolved, sinks=False).dense):
        raise UnsupportedError(
            f"{said}, and Hopper kernels without a producer compute full and causal attention"
            " only; pass a config with specialised=True"
        )
    if resolved.per_batch and config.skip_empty:
        raise UnsupportedError(
            f"{said}, and with lengths per sequence consumers without a query are always skipped;"
            " pass a config with skip_empty=False, or leave config out"
        )
    if resolved.block_descales and config.B_c > DESCALED_KEYS:
        raise UnsupportedError(
            f"{said}, and a key block of the config has {config.B_c} keys; there the blocks"
            f" have {DESCALED_KEYS}: pass a config with B_c up to {DESCALED_KEYS}, or leave it out"
        )
    if resolved.is_decode or resolved.heads_together > 1:
        _refuse_in_shared_tiles(
            said,
            {"dropout": resolved.dropout, "maxima": resolved.max_score},
        )
    if resolved.is_decode:
        _refuse_idle_fields(config)
    elif resolved.per_batch and config.tile_order is not TileOrder.DYNAMIC:
        raise UnsupportedError(
            f"{said}, and tiles of sequences of different lengths are handed out by a counter; the"
            f" config has tile_order=TileOrder.{config.tile_order.name}: pass one with"
            " TileOrder.DYNAMIC, or leave config out"
        )
    return resolved


def _refuse_in_shared_tiles(said: str, asked: dict[str, bool]) -> None:
    for what, is_asked in asked.items():
        if is_asked:
            raise UnsupportedError(
                f"{said}, and Hopper kernels that split keys or have several heads in a tile have"
                f" no {what}; pass a config with TileOrder.DYNAMIC, or leave it out"
            )


def _refuse_idle_fields(config: HopperForwardKernelConfig) -> None:
    """Raise UnsupportedError for fields that have no effect with split-KV."""
    idle = {
        "tile_order": config.tile_order is not TileOrder.ONE_EACH,
        "own_output": config.own_output,
        "direct_output": config.direct_output,
    }
    for name, on in idle.items():
        if on:
            raise UnsupportedError(
                f"split_keys is given, and {name} of the config would change nothing: a CTA then"
                " has one split of keys, and its rows of O leave from registers; leave the field at"
                " its default, or leave config out"
            )

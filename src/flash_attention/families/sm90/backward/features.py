# SPDX-License-Identifier: Apache-2.0
"""The features of Hopper backward kernels, and the C++ types that they bind."""

from __future__ import annotations

from dataclasses import dataclass, fields

from flash_attention.call.features import Features
from flash_attention.compile.binding import Binding, Number, Variant
from flash_attention.families.bindings import score_bindings
from flash_attention.families.sm90.backward.bias import bias_bytes
from flash_attention.families.sm90.backward.config import HopperBackwardKernelConfig
from flash_attention.families.sm90.backward.slots import FOLDER
from flash_attention.families.traced_args import changes_slopes
from flash_attention.program.nodes import How


@dataclass(frozen=True)
class Sm90BackwardFeatures(Features):
    """The required features, whether the heads that share a head of k are split, and which
    gradients of keys are left out."""

    splits_heads: bool = False  # dK and dV are stored as sums of a split
    listed: bool = False  # tiles visit the blocks that a mask function shows
    skips_dk: bool = False
    skips_dv: bool = False
    bias: bool = False  # TMA loads a captured tensor beside Q

    def words(self) -> list[str]:
        own = ("splits_heads", "listed", "skips_dk", "skips_dv", "bias")
        return [*super().words(), *(word for word in own if getattr(self, word))]

    def smem_bytes(self, config: HopperBackwardKernelConfig) -> int:
        """Return the bytes of dynamic shared memory of a CTA."""
        return config.smem_bytes() + (bias_bytes(config) if self.bias else 0)


def resolve(features: Features) -> Sm90BackwardFeatures:
    """Resolve the features for a Hopper backward kernel. Sinks do not change it: they are in the
    log-sum-exp."""
    given = {field.name: getattr(features, field.name) for field in fields(features)}
    return Sm90BackwardFeatures(**{**given, "sinks": False})


def feature_bindings(features: Sm90BackwardFeatures) -> tuple[Binding, ...]:
    """Return the C++ types and numbers that the features bind."""
    has_slopes = features.softcap or changes_slopes(features.program)
    slopes = Variant("Slopes", f"{FOLDER}/slopes", "Pairs" if has_slopes else "Ones")
    dropping = Variant("Dropping", f"{FOLDER}/dropping", "Operand" if features.dropout else "None")
    numbers = {
        "splits_heads": features.splits_heads,
        "wants_dk": not features.skips_dk,
        "wants_dv": not features.skips_dv,
    }
    bound = (Number(name, int(value)) for name, value in numbers.items())
    bias = Variant("Bias", f"{FOLDER}/bias", "Loaded" if features.bias else "None")
    scores = score_bindings(features, listed=features.listed)
    return (*scores, slopes, dropping, bias, _bias_gradient(features), *bound)


def _bias_gradient(features: Sm90BackwardFeatures) -> Variant:
    by_tiles = None if features.program is None else features.program.by_tiles
    names = {None: "None", How.TILES: "Stored", How.TILE_SUMS: "Summed"}
    return Variant("BiasGradient", f"{FOLDER}/bias_gradient", names[by_tiles and by_tiles.how])

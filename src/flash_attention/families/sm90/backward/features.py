# SPDX-License-Identifier: Apache-2.0
"""The features of Hopper backward kernels, and the C++ types that they bind."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.call.features import Features
from flash_attention.compile.binding import Binding, Variant
from flash_attention.families.bindings import score_bindings
from flash_attention.families.sm90.backward.slots import FOLDER


def resolve(features: Features) -> Features:
    """Resolve the features for a Hopper backward kernel. Sinks do not change it: they are in the
    log-sum-exp."""
    return replace(features, sinks=False)


def feature_bindings(features: Features) -> tuple[Binding, ...]:
    """Return the C++ types that the features bind."""
    slopes = Variant("Slopes", f"{FOLDER}/slopes", "Pairs" if features.softcap else "Ones")
    dropping = Variant("Dropping", f"{FOLDER}/dropping", "Operand" if features.dropout else "None")
    return (*score_bindings(features), slopes, dropping)

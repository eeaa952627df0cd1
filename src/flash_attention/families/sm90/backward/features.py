# SPDX-License-Identifier: Apache-2.0
"""The features of Hopper backward kernels, and the C++ types that they bind."""

from __future__ import annotations

from dataclasses import replace

from flash_attention.call.features import Features
from flash_attention.compile.binding import Variant
from flash_attention.errors import UnsupportedError

NO_SOFTCAP = (
    "Hopper backward kernels have no softcap; pass a FlashBackwardKernelConfig, or leave config out"
)


def resolve(features: Features) -> Features:
    """Resolve the features for a Hopper backward kernel. Sinks do not change it: they are in the
    log-sum-exp. Raises UnsupportedError for what the kernels do not have."""
    if features.softcap:
        raise UnsupportedError(f"softcap is asked for, and {NO_SOFTCAP}")
    return replace(features, sinks=False)


def feature_bindings(features: Features) -> tuple[Variant, ...]:
    """Return the C++ types that the features bind."""
    return (
        Variant("Mask", "attn/mask", features.mask.value),
        Variant("Lengths", "attn/lengths", "PerBatch" if features.per_batch else "Same"),
    )

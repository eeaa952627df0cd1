# SPDX-License-Identifier: Apache-2.0
"""Features: what is asked, how kernels are named after it, and how messages say it."""

from __future__ import annotations

import pytest

from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind


@pytest.mark.parametrize(
    ("features", "suffix"),
    [
        (PLAIN, ""),
        (CAUSAL, "_causal"),
        (Features(MaskKind.WINDOW), "_window"),
        (Features(softcap=True), "_softcap"),
        (Features(MaskKind.CAUSAL, softcap=True, per_batch=True), "_causal_softcap_per_batch"),
        (Features(per_batch=True, page_keys=64), "_per_batch_page_64"),
        (Features(sinks=True), "_sinks"),
    ],
)
def test_a_kernel_is_named_after_its_features(features: Features, suffix: str) -> None:
    assert features.suffix == suffix


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (PLAIN, []),
        (CAUSAL, ["causal=True"]),
        (Features(MaskKind.WINDOW, softcap=True), ["a window", "softcap"]),
        (
            Features(per_batch=True, page_keys=64),
            ["a length of its own for every sequence", "block_table"],
        ),
        (Features(sinks=True), []),
    ],
)
def test_what_is_asked_is_said_as_the_caller_would(features: Features, words: list[str]) -> None:
    """Every kernel has sinks, so that no message speaks of them."""
    assert features.in_words() == words


def test_dense_is_full_or_causal_attention_and_no_more() -> None:
    assert PLAIN.dense
    assert CAUSAL.dense
    for features in (
        Features(MaskKind.WINDOW),
        Features(softcap=True),
        Features(per_batch=True),
        Features(page_keys=16),
        Features(MaskKind.CAUSAL, sinks=True),
    ):
        assert not features.dense

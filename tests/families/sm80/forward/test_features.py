# SPDX-License-Identifier: Apache-2.0
"""Features of sm_80 kernels: what they refuse, what they bind, and when they are predicated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.call.problem import Problem
from flash_attention.families.registry import unit_of
from flash_attention.families.sm80.forward.family import SM80
from flash_attention.families.sm80.forward.features import Sm80Features, resolve
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.ladder import get_ladder

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
EXACT = Problem(
    batch=5,
    seq_q=192,
    seq_k=512,
    heads=6,
    heads_k=6,
    d_head=128,
    d_v=128,
    dtype=torch.float16,
    softmax_scale=128**-0.5,
)


@pytest.mark.parametrize(
    ("change", "features"),
    [
        ({}, Sm80Features()),
        ({"softcap": 2.0}, Sm80Features(softcap=True)),
        ({"seq_q": 64, "seq_k": 32}, Sm80Features()),
        ({"seq_q": 191}, Sm80Features(predicated=True)),
        ({"seq_k": 48}, Sm80Features(predicated=True)),
        ({"heads_k": 2}, Sm80Features(predicated=True)),
        ({"d_head": 120}, Sm80Features(predicated=True)),
        ({"d_v": 64, "softcap": 2.0}, Sm80Features(softcap=True, predicated=True)),
        ({"sinks": True}, Sm80Features(sinks=True)),
        ({"causal": True, "seq_q": 191}, Sm80Features(MaskKind.CAUSAL)),
        ({"seqused_k": True, "sinks": True}, Sm80Features(per_batch=True, sinks=True)),
    ],
)
def test_a_kernel_guards_what_its_tiles_do_not_cover(
    change: dict[str, Any], features: Sm80Features
) -> None:
    problem = replace(EXACT, **change)
    assert SM80.features(CONFIG, problem) == features
    assert resolve(problem.features) == replace(features, predicated=False)


def test_a_log_sum_exp_is_not_for_exact_tiles() -> None:
    assert SM80.features(CONFIG, EXACT, return_lse=True) == Sm80Features(predicated=True)
    causal = replace(EXACT, causal=True)
    assert SM80.features(CONFIG, causal, return_lse=True) == Sm80Features(MaskKind.CAUSAL)


@pytest.mark.parametrize(
    "features",
    [
        PLAIN,
        CAUSAL,
        Features(MaskKind.WINDOW),
        Features(softcap=True),
        Features(per_batch=True),
        Features(MaskKind.WINDOW, True, True, sinks=True),
        Features(per_batch=True, page_keys=24),
    ],
)
def test_features_are_resolved_and_stay_so(features: Features) -> None:
    resolved = SM80.resolve(CONFIG, features)
    assert resolved.words() == features.words()
    assert SM80.resolve(CONFIG, resolved) == resolved
    predicated = replace(resolved, predicated=True)
    assert SM80.resolve(CONFIG, predicated) == predicated
    assert predicated.words() == [*features.words(), "predicated"]


def test_kernels_are_predicated_only_where_they_have_to_be() -> None:
    config = get_ladder()[0].config
    plain = unit_of(config).source
    assert "using Predication = fa::sm80::predication::Off;" in plain
    assert unit_of(config, Features(softcap=True)).source.count("predication::Off;") == 1
    windows = Features(MaskKind.WINDOW, per_batch=True)
    others = (Sm80Features(predicated=True), Features(per_batch=True), Features(sinks=True))
    for features in (CAUSAL, windows, *others):
        assert unit_of(config, features).source.count("predication::On;") == 1
    paged = unit_of(config, Features(per_batch=True, page_keys=24)).source
    assert paged.count("using Predication = fa::sm80::predication::Paged<24>;") == 1


def test_a_kernel_is_named_and_bound_as_its_features_say() -> None:
    config = get_ladder()[0].config
    predicated = unit_of(config, Sm80Features(predicated=True))
    assert predicated.name == f"{config.kernel_name()}_predicated"
    assert unit_of(config, CAUSAL).name == f"{config.kernel_name()}_causal"
    with_sinks = unit_of(config, Features(sinks=True)).source
    assert "using Sinks = fa::attn::sinks::PerHead;" in with_sinks
    assert "using Sinks = fa::attn::sinks::None;" in predicated.source

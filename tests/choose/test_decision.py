# SPDX-License-Identifier: Apache-2.0
"""Which rule chooses the kernel of a call, and what precedes it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.call.call import NO_EXTRAS, Options
from flash_attention.call.features import SplitKind
from flash_attention.call.problem import Problem
from flash_attention.choose.decision import Decision, Rule, check_call, decide
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.sm90.forward.short_queries import select_chunks
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)

CPU = torch.device("cpu")
SM80, SM90 = ARCHES["sm_80"], ARCHES["sm_90"]
SMS = 132
GIVEN = HopperForwardKernelConfig(DType.BF16, 64, 1, 64, 2, tma=True, specialised=True)


def meta(seq: int, heads: int = 4) -> Tensor:
    return torch.empty(1, seq, heads, 64, dtype=torch.bfloat16, device="meta")


def problem_of(q: Tensor, k: Tensor) -> Problem:
    return check_call(q, k, k, None, Options(), NO_EXTRAS, device=CPU)[0]


def decision(
    seq_q: int, seq_k: int, config: KernelConfig | None = None, arch: str = "", **options: int
) -> Decision:
    asked = Options(**options)  # type: ignore[arg-type]
    q, k = meta(seq_q), meta(seq_k)
    problem, views = check_call(q, k, k, None, asked, NO_EXTRAS, device=CPU)
    return decide(config, problem, views, asked, ARCHES.get(arch), SMS)


def test_many_queries_have_the_rule_of_thumb_and_few_their_own() -> None:
    short = select_chunks(problem_of(meta(1), meta(4096)), SM90, SMS)
    assert short is not None
    assert decision(1, 4096) == Decision(*(short[0], SM90, short[1]), Rule.SHORT_QUERIES)
    config = select_config(problem_of(meta(256), meta(256)), SM80)
    assert isinstance(config, FlashForwardKernelConfig)
    assert decision(256, 256, arch="sm_80") == Decision(config, SM80, None, Rule.RULE_OF_THUMB)


def test_a_given_config_stays_and_is_cut_only_if_asked() -> None:
    whole = decision(1, 4096, GIVEN)
    assert whole == Decision(GIVEN, SM90, None, Rule.GIVEN)
    cut = decision(1, 4096, GIVEN, split_keys=1024)
    problem = problem_of(meta(1), meta(4096))
    assert cut.chunks == Chunks.of_keys(problem, GIVEN.B_c, 1024)
    assert cut.features(problem).splits is SplitKind.CHUNKED
    assert whole.features(problem).splits is SplitKind.WHOLE
    with pytest.raises(KernelConfigError, match="needs sm_90"):
        decision(1, 4096, GIVEN, arch="sm_80")


def test_tensors_without_memory_pass_only_as_if_on_a_device() -> None:
    q = meta(8)
    with pytest.raises(UnsupportedError, match="q is on meta; a CUDA tensor is needed"):
        check_call(q, q, q, None, Options(), NO_EXTRAS)
    problem, views = check_call(q, q, q, None, Options(), NO_EXTRAS, device=CPU)
    assert (problem.seq_q, len(views)) == (8, 4)
    there = torch.zeros(q.shape, dtype=q.dtype)
    with pytest.raises(UnsupportedError, match="q is on meta; a CUDA tensor is needed"):
        check_call(q, there, there, None, Options(), NO_EXTRAS, device=CPU)

# SPDX-License-Identifier: Apache-2.0
"""What explain says of a user's function: its program, the share of its tiles, and a picture."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import Function, HopperForwardKernelConfig, masks, scores
from flash_attention.call.dtype import DType
from flash_attention.reference.functions import applied, places
from flash_attention_workbench.explain import Explanation, explain

CONFIG = HopperForwardKernelConfig(DType.BF16, 16, 1, 32, 2, tma=True, specialised=True)
QUERIES, KEYS = 320, 256


def explained(q_len: int = QUERIES, k_len: int = KEYS, **keywords: Any) -> Explanation:
    q, k = (torch.zeros(1, length, 2, 16, dtype=torch.bfloat16) for length in (q_len, k_len))
    return explain(q, k, k, config=CONFIG, arch="sm_90", **keywords)


def shown(function: Function, q_len: int, k_len: int) -> Tensor:
    """Which keys queries see, element by element."""
    at = places(0, slice(0, 1), range(q_len), slice(0, k_len), torch.device("cpu"))
    return applied(function.traced, torch.zeros(1, q_len, k_len), at)[0] > -torch.inf


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("mask", [masks.causal(20), masks.window(70, 40)], ids=["offset", "window"])
def test_the_tiles_are_those_of_the_mask(mask: masks.Mask, causal: bool) -> None:
    report = explained(k_len=QUERIES, mask=mask, causal=causal)
    seen = shown(Function(mask=mask), QUERIES, QUERIES)
    seen = seen.tril() if causal else seen
    blocks = seen.view(QUERIES // 64, 64, QUERIES // 32, 32).transpose(1, 2).flatten(2)
    full, some = int(blocks.all(-1).sum()), int(blocks.any(-1).sum())
    assert report.function is not None
    tiles = report.function.tiles
    assert tiles is not None
    assert (tiles.empty, tiles.full, tiles.partial) == (50 - some, full, some - full)
    shares = [f"{2 * n} %" for n in (tiles.empty, tiles.full, tiles.partial)]
    said = "{} empty, {} full, {} partial".format(*shares)
    assert ("blocks", said) in report.rows()


def test_the_picture_shows_seen_hidden_and_mixed_cells() -> None:
    report = explained(16, 32, mask=masks.documents(torch.arange(32) // 10), causal=True)
    assert report.function is not None
    seen = shown(Function(mask=masks.documents(torch.arange(32) // 10)), 16, 32).tril(16)
    lines = tuple("".join(".#"[each] for each in row) for row in seen.int().tolist())
    assert report.function.picture == lines
    coarse = explained(mask=masks.dilated(2) & masks.causal())
    assert coarse.function is not None
    assert coarse.function.picture[0] == "+++" + "." * 29
    assert coarse.function.picture[-1] == "+" * 32


def test_the_program_and_its_cuda_are_printed() -> None:
    report = explained(score=scores.softcap(2.0))
    assert report.function is not None
    assert any(line.startswith("%5 float mul") for line in report.function.program)
    assert report.function.cuda.startswith("struct Program {")
    assert report.function.program[0] in str(report)
    assert "static __device__ __forceinline__ float slope" in str(report)
    assert report.function.tiles is None
    assert not {"blocks", "mask"} & {name for name, _ in report.rows()}
    text = json.dumps(report.to_dict(), default=str)
    assert json.loads(text)["function"]["program"] == report.function.program


def test_a_mask_of_heads_is_that_of_the_first_and_its_work_is_a_bound() -> None:
    reach = torch.tensor([9, 300])
    report = explained(mask=lambda batch, head, query, key: abs(query - key) <= reach[head])
    said = dict(report.rows())
    assert said["blocks"].endswith(" partial in head 0")
    assert said["work"].startswith("at most ")
    assert explained().work.exact
    assert explained().function is None


def test_a_mask_that_is_built_in_is_explained_as_such() -> None:
    report = explained(k_len=QUERIES, mask=masks.causal())
    assert report.function is None
    assert report.problem.causal


def test_tiles_of_decoding_have_the_queries_of_grouped_heads() -> None:
    """Eight heads share a tile of 64 rows: 8 queries, at the last of 1024 keys. If the mask differs
    between them, it leaves no block out."""
    q = torch.zeros(2, 8, 16, 64, dtype=torch.bfloat16)
    k = torch.zeros(2, 1024, 2, 64, dtype=torch.bfloat16)
    used = torch.tensor([1024, 1024], dtype=torch.int32)
    report = explain(q, k, k, seqused_k=used, mask=masks.window(55, None), arch="sm_90")
    assert report.function is not None
    assert report.function.tiles is not None
    assert str(report.function.tiles) == "94 % empty, 0 % full, 6 % partial"
    reach = torch.arange(16)
    report = explain(
        *(q, k, k), seqused_k=used, mask=lambda b, h, q, k: q - k < reach[h], arch="sm_90"
    )
    assert dict(report.rows())["blocks"] == "all of them are visited in head 0"

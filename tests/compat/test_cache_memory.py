# SPDX-License-Identifier: Apache-2.0
"""Caches, new rows and queries that share memory: a row that is stored changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from flash_attention.errors import UnsupportedError
from tests.compat.rotations import rotation

BATCH, ROWS, HEADS, D = 2, 32, 2, 64
FILLED = 20


def drawn(rows: int, d: int = D) -> Tensor:
    generator = torch.Generator().manual_seed(rows + d)
    return torch.randn(BATCH, rows, HEADS, d, generator=generator)


CACHE, NEW = drawn(ROWS), drawn(2)
SHARED: dict[str, tuple[str, dict[str, Tensor]]] = {  # a message, and what differs from others
    "an expanded cache": (
        r"k_cache has shape \(2, 32, 2, 64\) and strides \(0, 128, 64, 1\), so several of its",
        {"k_cache": CACHE[:1].expand(BATCH, -1, -1, -1)},
    ),
    "rows that overlap": (
        "v_cache has shape .* share memory, and new rows are stored in place",
        {"v_cache": CACHE.as_strided((BATCH, ROWS, HEADS, D), (2048, D, D, 1))},
    ),
    "new keys in the cache": (
        r"k and k_cache overlap in memory: .* pass k\.clone\(\)",
        {"k_cache": CACHE, "k": CACHE[:, FILLED - 1 : FILLED + 1]},
    ),
    "new values among the keys": (
        "v and k_cache overlap in memory",
        {"k_cache": CACHE, "v": CACHE[:, :2]},
    ),
    "queries in the cache": (
        "q and v_cache overlap in memory",
        {"v_cache": CACHE, "q": CACHE[:, FILLED : FILLED + 2]},
    ),
}


def call(**other: Any) -> dict[str, Any]:
    own = {name: CACHE.clone() for name in ("k_cache", "v_cache")}
    return own | {name: NEW.clone() for name in "qkv"} | {"cache_seqlens": FILLED} | other


def attended(**asked: Any) -> Tensor:
    out = flash_attn_with_kvcache(**asked)
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("name", SHARED)
def test_what_shares_memory_with_a_row_that_is_stored_is_refused(name: str) -> None:
    message, shared = SHARED[name]
    asked, before = call(**shared), CACHE.clone()
    with pytest.raises(UnsupportedError, match=message):
        attended(**asked)
    assert torch.equal(CACHE, before)


def test_nothing_is_refused_where_nothing_is_stored() -> None:
    expanded = CACHE[:1].expand(BATCH, -1, -1, -1)
    asked = call(q=CACHE[:, :2], k_cache=expanded, v_cache=expanded, k=None, v=None)
    copied = {name: None if t is None else t.clone() for name, t in asked.items() if name in "qkv"}
    own = call(**copied, k_cache=expanded.clone(), v_cache=expanded.clone())
    assert torch.equal(attended(**asked), attended(**own))


def test_caches_may_be_columns_or_entries_of_one_tensor() -> None:
    k_cache, v_cache = CACHE.clone(), CACHE.clone()
    wanted = attended(**call(k_cache=k_cache, v_cache=v_cache))
    columns, entries = torch.cat((CACHE, CACHE), -1), torch.stack((CACHE, CACHE))
    for k_part, v_part in ((columns[..., :D], columns[..., D:]), entries.unbind()):
        out = attended(**call(k_cache=k_part, v_cache=v_part))
        assert torch.equal(out, wanted)
        assert torch.equal(k_part, k_cache)
        assert torch.equal(v_part, v_cache)


def test_columns_that_are_keys_and_values_are_not_rotated() -> None:
    cos, sin = (t.float() for t in rotation(ROWS, 32))
    wide, new = drawn(ROWS, D + 32), drawn(2, D + 32)
    asked = call(q=new, k_cache=wide, k=new, rotary_cos=cos, rotary_sin=sin)
    with pytest.raises(UnsupportedError, match="v_cache has some of the first 32 columns of k_cac"):
        attended(**asked | {"v_cache": wide[..., 31 : D + 31], "v": NEW})
    behind = attended(**asked | {"v_cache": wide[..., 32:], "v": new[..., 32:]})
    wide = drawn(ROWS, D + 32)
    own = {"k_cache": wide, "v_cache": wide[..., 32:].clone(), "v": new[..., 32:]}
    assert torch.equal(behind, attended(**asked | own))

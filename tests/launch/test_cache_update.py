# SPDX-License-Identifier: Apache-2.0
"""The kernel that updates a KV cache stores and describes what torch does, bit by bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.cache_call import CacheCall, CachedKeys
from flash_attention.errors import LaunchError
from flash_attention.families.cache_update import cache_recipe, cache_tensors, has_whole_chunks
from flash_attention.launch import emulation
from flash_attention.launch.cache_update import update_cache
from flash_attention.reference.cache import update_with_torch
from ptx_emulator import SCHEDULES
from tests.cache_calls import (
    KINDS,
    LENGTHS,
    QUERIES,
    cache_call,
    numbers,
    packed_call,
    with_own_cache,
)
from tests.devices import DEVICES

TURNS: dict[str, dict[str, Any]] = {
    "none": {},
    "interleaved": {"interleaved": True},
    "halves": {"interleaved": False},
    "one position": {"interleaved": True, "one_position": True},
}


def on(call: CacheCall, device: str) -> CacheCall:
    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    turn = call.rotary
    call = CacheCall(*map(moved, call))
    return call._replace(rotary=turn and type(turn)(*map(moved, turn)))


def check(call: CacheCall, device: str = "cpu") -> CachedKeys:
    """The kernel agrees with torch on the CPU; what it found."""
    given, wanted = on(with_own_cache(call), device), with_own_cache(call)
    found, keys = update_cache(given), update_with_torch(wanted)
    assert torch.equal(given.k_cache.cpu(), wanted.k_cache)
    assert torch.equal(given.v_cache.cpu(), wanted.v_cache)
    inside = slice(None)
    if call.cu_seqlens_q is not None:
        inside = slice(int(call.cu_seqlens_q[0]), int(call.cu_seqlens_q[-1]))
    assert torch.equal(found.q.cpu()[inside], keys.q[inside])
    assert torch.equal(found.used.cpu(), keys.used)
    assert (found.starts is None) == (keys.starts is None)
    if found.starts is not None and keys.starts is not None:
        assert torch.equal(found.starts.cpu(), keys.starts)
    assert (found.table is None) == (keys.table is None)
    if found.table is not None and keys.table is not None:
        for mine, theirs, used in zip(found.table.cpu(), keys.table, keys.used, strict=True):
            pages = -(-int(used) // call.own_page_rows)
            assert torch.equal(mine[:pages], theirs[:pages])
    return keys


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_are_stored_in_caches_of_every_kind(kind: str, lengths: str, device: str) -> None:
    keys = check(cache_call(kind, lengths), device)
    assert bool(keys.used.any()) == (lengths != "none fits")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_may_be_packed(kind: str, lengths: str, device: str) -> None:
    keys = check(packed_call(kind, lengths), device)
    assert bool(keys.used.any()) == (lengths != "none fits")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("turn", TURNS)
def test_packed_rows_are_rotated_on_the_way(turn: str, device: str) -> None:
    check(packed_call("pages index pad", d=60, d_v=40, **TURNS[turn]), device)


@pytest.mark.parametrize("device", DEVICES)
def test_more_packed_rows_than_queries_are_stored(device: str) -> None:
    call = packed_call("rows")
    assert call.k is not None
    check(call._replace(cu_seqlens_k_new=numbers(0, 0, 0, len(call.k))), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("d", [64, 60, 32], ids=lambda d: f"d {d}")
def test_rows_are_rotated_on_the_way(d: int, turn: str, dtype: torch.dtype, device: str) -> None:
    check(cache_call("pages", d=d, d_v=40, dtype=dtype, **TURNS[turn]), device)


@pytest.mark.parametrize("device", DEVICES)
def test_queries_may_be_packed_and_positions_given(device: str) -> None:
    call = cache_call("rows", interleaved=False)
    assert call.rotary is not None
    turn = call.rotary._replace(seqlens=numbers(1, 30, 2))
    packed = call._replace(
        q=call.q.flatten(0, 1)[:9],
        cu_seqlens_q=numbers(1, 5, 5, 8),
        max_seqlen_q=4,
        rotary=turn,
    )
    check(packed, device)


@pytest.mark.parametrize("device", DEVICES)
def test_positions_without_an_angle_store_nothing(device: str) -> None:
    call = cache_call("rows", interleaved=False)
    assert call.rotary is not None
    turn = call.rotary._replace(seqlens=numbers(64 - QUERIES, 65 - QUERIES, -1))
    keys = check(call._replace(rotary=turn), device)
    assert keys.used.tolist() == [10, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_an_index_of_nobody_and_padding_of_more_than_there_is_store_nothing(device: str) -> None:
    for kind in ("index", "pages index", "pages index pad"):
        call = cache_call(kind)._replace(batch_index=numbers(2, 99, -1))
        assert check(call, device).used.tolist()[1:] == [0, 0]
        packed = packed_call(kind)._replace(
            batch_index=numbers(2, 0, -1)
        )  # the last has no new row
        assert check(packed, device).used.tolist()[2] == 0
    for kind in ("pad", "index pad"):
        call = cache_call(kind)._replace(leftpad=numbers(10, 4, -1))
        assert check(call, device).used.tolist() == [0, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache_is_described_without_new_rows(device: str) -> None:
    for kind in ("pad", "pages index", "index pad", "pages index pad"):
        call = cache_call(kind)._replace(k=None, v=None)
        keys = check(call, device)
        pads = (2, 0, 5) if "pad" in kind else (0, 0, 0)
        assert keys.used.tolist() == [n - pad for n, pad in zip((7, 0, 20), pads, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_may_have_gaps_and_any_address(device: str) -> None:
    wide = torch.randn(3, 40, 2, 130).to(device, torch.bfloat16)
    other = wide.clone()
    k, v = torch.randn(2, 3, 3, 2, 65).to(device, torch.bfloat16)[..., 1:].unbind()
    call = on(cache_call("rows"), device)._replace(k=k, v=v)
    given, wanted = (
        call._replace(k_cache=cache[..., :64], v_cache=cache[..., 64:128])
        for cache in (wide, other)
    )
    tensors = cache_tensors(given, given.empty_keys())
    assert not has_whole_chunks(tensors)
    update_cache(given)
    update_with_torch(wanted)
    assert torch.equal(given.k_cache, wanted.k_cache)
    assert torch.equal(given.v_cache, wanted.v_cache)


def test_all_schedules_store_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    call = cache_call("pages index pad", "one too many", interleaved=False)
    settings = emulation.Settings
    for schedule in SCHEDULES:
        monkeypatch.setattr(emulation, "Settings", lambda which=schedule: settings(which))
        check(call)


def test_a_store_outside_of_the_cache_would_be_found() -> None:
    call = cache_call("rows")
    keys = call.empty_keys()
    tensors = cache_tensors(call, keys)
    recipe = cache_recipe(call, tensors, "sm_80", whole_chunks=True)
    recipe.arguments.max_rows = recipe.arguments.entry_rows = 1 << 20  # as if it were longer
    tensors["seqlens"] = numbers(7, 0, 5000)
    with pytest.raises(LaunchError, match="cache_update_bf16_vectors_none"):
        emulation.emulate_small(recipe, recipe.arguments, tensors, ["k_cache"])


def test_one_kernel_serves_caches_of_all_kinds() -> None:
    units = set()
    for kind in KINDS:
        call = cache_call(kind)
        tensors = cache_tensors(call, call.empty_keys())
        recipe = cache_recipe(call, tensors, "sm_80", whole_chunks=True)
        units.add(recipe.steps[0].unit)
    (unit,) = units
    assert unit.name == "cache_update_bf16_vectors_none"
    assert replace(unit, target="sm_90") != unit


@pytest.mark.gpu
def test_a_captured_update_follows_lengths_that_change() -> None:
    call = on(cache_call("pages", interleaved=True), "cuda")
    update_cache(with_own_cache(call))  # compiles
    mine = with_own_cache(call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keys = update_cache(mine)
    assert isinstance(mine.lengths, Tensor)
    for lengths in ((3, 11, 0), (20, 1, 5)):
        mine.lengths.copy_(numbers(*lengths))
        before = on(mine, "cpu")
        wanted = update_with_torch(before)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(mine.k_cache.cpu(), before.k_cache)
        assert torch.equal(mine.v_cache.cpu(), before.v_cache)
        assert torch.equal(keys.used.cpu(), wanted.used)
        assert torch.equal(keys.q.cpu(), wanted.q)

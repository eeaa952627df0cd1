# SPDX-License-Identifier: Apache-2.0
"""Packed new keys of a KV cache: each sequence is served as if it were alone with its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.results import E4M3
from flash_attention.compat import flash_attn, kv_cache
from flash_attention.compat.flash_attn_3 import flash_attn_with_kvcache
from flash_attention.errors import UnsupportedError
from flash_attention.launch.cache_update import update_cache
from flash_attention.reference.judge import cu_seqlens
from tests.compat.rotations import rotation
from tests.compat.test_kv_cache import emulated
from tests.devices import DEVICES

HEADS, HEADS_K, D, ROWS, PAGE = 4, 2, 64, 64, 16
LENGTHS, COUNTS, QUERIES = (20, 61, 0), (2, 0, 5), (3, 1, 4)
TABLE = ((3, 1, 5, 0), (2, 7, 9, 4), (8, 6, 10, 11))
DESCRIBED: dict[str, dict[str, Any]] = {
    "rows": {},
    "pages": {"page_table": TABLE},
    "moved": {"cache_batch_idx": (2, 0, 1)},
    "padded": {"cache_leftpad": (3, 0, 2)},
    "moved and padded pages": {
        "page_table": TABLE,
        "cache_batch_idx": (1, 2, 0),
        "cache_leftpad": (3, 0, 2),
    },
}
ROTATED = ("pages", "padded")
CASES = [
    *((kind, packed_q, False) for kind in DESCRIBED for packed_q in (False, True)),
    *((kind, packed_q, True) for kind in ROTATED for packed_q in (False, True)),
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def arguments(kind: str, packed_q: bool = False, rotated: bool = False) -> dict[str, Any]:
    """A call with packed new keys; the first row of k and v is no sequence's."""
    entries = (12, PAGE) if "pages" in kind else (3, ROWS)
    given: dict[str, Any] = {
        "q": drawn(sum(QUERIES), HEADS, D) if packed_q else drawn(3, 2, HEADS, D),
        "k_cache": drawn(*entries, HEADS_K, D, seed=1),
        "v_cache": drawn(*entries, HEADS_K, D, seed=2),
        "k": drawn(sum(COUNTS) + 1, HEADS_K, D, seed=3),
        "v": drawn(sum(COUNTS) + 1, HEADS_K, D, seed=4),
        "cu_seqlens_k_new": cu_seqlens(COUNTS) + 1,
        "cache_seqlens": torch.tensor(LENGTHS, dtype=torch.int32),
        "causal": True,
    }
    given |= {n: torch.tensor(t, dtype=torch.int32) for n, t in DESCRIBED[kind].items()}
    if packed_q:
        given |= {"cu_seqlens_q": cu_seqlens(QUERIES), "max_seqlen_q": max(QUERIES)}
    if rotated:
        given["rotary_cos"], given["rotary_sin"] = rotation(ROWS + 8, 32)
    return given


def result(given: dict[str, Any], device: str = "cpu") -> list[Tensor]:
    """The output and the caches."""
    moved: dict[str, Any] = {
        n: t.clone().to(device) if isinstance(t, Tensor) else t for n, t in given.items()
    }
    out: Any = flash_attn_with_kvcache(**moved)
    return [t.cpu() for t in (out, moved["k_cache"], moved["v_cache"])]


def one_by_one(given: dict[str, Any]) -> list[Tensor]:
    """The same, by a call for each sequence with its new keys alone."""
    given = {n: t.clone() if isinstance(t, Tensor) else t for n, t in given.items()}
    starts, starts_q = given.pop("cu_seqlens_k_new"), given.pop("cu_seqlens_q", None)
    given.pop("max_seqlen_q", None)
    q, k, v, outs = given.pop("q"), given.pop("k"), given.pop("v"), []
    entries = torch.arange(len(starts) - 1, dtype=torch.int32)
    index = given.pop("cache_batch_idx", entries)
    for entry in range(len(starts) - 1):
        some, news = slice(entry, entry + 1), slice(starts[entry], starts[entry + 1])
        own: dict[str, Any] = {
            n: t[some] for n, t in given.items() if n in ("cache_seqlens", "cache_leftpad")
        }
        rows = q[some] if starts_q is None else q[None, starts_q[entry] : starts_q[entry + 1]]
        new = {"k": k[None, news], "v": v[None, news], "cache_batch_idx": index[some]}
        asked: dict[str, Any] = {**given, **own, **new}
        out: Any = flash_attn_with_kvcache(rows, **asked)
        outs.append(out)
    out = torch.cat(outs) if starts_q is None else torch.cat(outs, 1)[0]
    return [out, given["k_cache"], given["v_cache"]]


def check(found: list[Tensor], wanted: list[Tensor]) -> None:
    torch.testing.assert_close(found[0], wanted[0], rtol=1.6e-2, atol=1.6e-2)
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(found[2], wanted[2])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "packed_q", "rotated"), CASES)
def test_packed_new_keys_are_those_of_each_sequence(
    kind: str, packed_q: bool, rotated: bool, device: str
) -> None:
    given = arguments(kind, packed_q, rotated)
    wanted = one_by_one(given)
    assert not torch.equal(wanted[1], given["k_cache"])
    check(result(given, device), wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "packed_q", "rotated"), CASES)
def test_emulated_kernels_take_packed_new_keys(
    kind: str, packed_q: bool, rotated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments(kind, packed_q, rotated)
    wanted = one_by_one(given)
    monkeypatch.setattr(flash_attn, "attention", emulated)
    monkeypatch.setattr(kv_cache, "update_with_torch", update_cache)
    check(result(given), wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_packed_new_keys_may_have_8_bits(device: str) -> None:
    given = arguments("pages", packed_q=True)
    given |= {n: given[n].to(E4M3) for n in ("k_cache", "v_cache", "k", "v")}
    found, wanted = result(given, device), one_by_one(given)
    check(
        [found[0], *(t.float() for t in found[1:])], [wanted[0], *(t.float() for t in wanted[1:])]
    )


@pytest.mark.parametrize("device", DEVICES)
def test_packed_new_keys_that_do_not_fit_are_not_stored(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "has_values", lambda numbers: False)
    given = arguments("rows")
    given["cu_seqlens_k_new"] = cu_seqlens((2, 4, 1)) + 1  # 61 + 4 rows are one too many
    out, *caches = result(given, device)
    given["cache_seqlens"] = torch.tensor((20, 60, 0), dtype=torch.int32)
    wanted, *stored = one_by_one(given)
    torch.testing.assert_close(out[[0, 2]], wanted[[0, 2]], rtol=1.6e-2, atol=1.6e-2)
    assert not out[1].any()
    for name, cache, all_stored in zip(("k_cache", "v_cache"), caches, stored, strict=True):
        assert torch.equal(cache[[0, 2]], all_stored[[0, 2]])
        assert torch.equal(cache[1], given[name][1])


@pytest.mark.slow
def test_packed_new_keys_are_stored_in_a_compiled_function_too() -> None:
    given = arguments("pages", packed_q=True, rotated=True)
    wanted = result(given)
    torch._dynamo.reset()
    step = torch.compile(flash_attn_with_kvcache, backend="aot_eager", fullgraph=True)
    moved: dict[str, Any] = {n: t.clone() if isinstance(t, Tensor) else t for n, t in given.items()}
    out: Any = step(**moved)
    check([out, moved["k_cache"], moved["v_cache"]], wanted)


STARTS = cu_seqlens(COUNTS)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no new keys": ({"k": None, "v": None}, "k, v is missing; to store new keys"),
    "padded": ({"k": drawn(3, 2, HEADS_K, D)}, r"cu_seqlens_k_new new keys are \(total_new, heads"),
    "values": ({"v": drawn(7, HEADS_K, D)}, r"v has shape .*\(total_new, heads_k, d\) = \(8, 2"),
    "a list": (
        {"cu_seqlens_k_new": [0, 2, 2, 7]},
        "cu_seqlens_k_new is a list; pass a torch.int32",
    ),
    "dtype": ({"cu_seqlens_k_new": STARTS.long()}, "is torch.int64; pass a torch.int32 tensor of"),
    "count": ({"cu_seqlens_k_new": STARTS[1:]}, "has 3 numbers; q has 3 sequences, pass 4"),
    "falling": ({"cu_seqlens_k_new": STARTS.flip(0)}, "cu_seqlens_k_new falls from 7 to 2"),
    "outside": ({"cu_seqlens_k_new": STARTS + 2}, "goes from 2 to 9; k has 8 rows"),
    "no room": (
        {"cache_seqlens": torch.tensor((63, 63, 0), dtype=torch.int32)},
        r"cache_seqlens\[0\] is 63 and there are 2 new keys; .* allowed are 0 to 62",
    ),
    "no room for the most": ({"cache_seqlens": 60}, "cache_seqlens is 60 and there are 5 new keys"),
    "no angle": (
        dict(zip(("rotary_cos", "rotary_sin"), rotation(ROWS, 32), strict=True))
        | {"rotary_seqlens": torch.tensor((0, 0, 60), dtype=torch.int32)},
        "sequence 2 has the positions 60 to 64; rotary_cos and rotary_sin have 64 rows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_packed_new_keys_are_described_by_their_starts(case: str) -> None:
    changed, message = REFUSED[case]
    given: dict[str, Any] = {**arguments("rows"), **changed}
    before = given["k_cache"].clone()
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(**given)
    assert torch.equal(given["k_cache"], before)


@pytest.mark.gpu
def test_a_captured_step_follows_packed_new_keys_that_change() -> None:
    given: dict[str, Any] = {
        name: value.cuda() if isinstance(value, Tensor) else value
        for name, value in arguments("pages", packed_q=True, rotated=True).items()
    }
    caches = [given["k_cache"].clone(), given["v_cache"].clone()]
    flash_attn_with_kvcache(**given)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out: Any = flash_attn_with_kvcache(**given)
    for counts in ((5, 2, 1), (0, 0, 8)):
        given["k_cache"].copy_(caches[0])
        given["v_cache"].copy_(caches[1])
        given["cu_seqlens_k_new"].copy_(cu_seqlens(counts))
        on_cpu = {n: t.cpu() if isinstance(t, Tensor) else t for n, t in given.items()}
        wanted = one_by_one(on_cpu)
        graph.replay()
        check([out.cpu(), given["k_cache"].cpu(), given["v_cache"].cpu()], wanted)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_rows_are_stored_in_caches_with_contiguous_columns(name: str) -> None:
    given = arguments("rows")
    given[name] = given[name].mT.contiguous().mT
    before = {each: given[each].clone() for each in ("k_cache", "v_cache")}
    with pytest.raises(UnsupportedError, match=f"the last dimension of {name} has stride 2; new"):
        flash_attn_with_kvcache(**given)
    assert all(torch.equal(given[each], cache) for each, cache in before.items())

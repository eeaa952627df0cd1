# SPDX-License-Identifier: Apache-2.0
"""New keys that do not fit into a cache: refused where the host knows, not stored where it does
not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.call import Call
from flash_attention.compat import flash_attn, kv_cache
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from flash_attention.compat.flash_attn_3 import flash_attn_with_kvcache as version_3
from flash_attention.errors import UnsupportedError
from flash_attention.launch.cache_update import update_cache
from flash_attention.launch.plans import plan_for
from flash_attention.reference.judge import generate_qkv
from tests.devices import DEVICES

BATCH, ROWS, PAGE = 3, 64, 16
with_cache: Any = version_3


def numbers(*values: Any, device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def new_rows(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of new tokens."""
    return generate_qkv(BATCH, count, 4, 64, torch.bfloat16, "cpu", 5, n_heads_k=2)


def empty_cache(entries: int = BATCH, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    _, k, v = generate_qkv(entries, rows, 2, 64, torch.bfloat16)
    return k, v


TABLE = numbers([3, 1, 5, 0], [2, 7, 9, 4], [8, 6, 10, 11])
CACHES: dict[str, tuple[int, int, dict[str, Tensor]]] = {  # entries, rows, how it is described
    "rows": (BATCH, ROWS, {}),
    "moved": (5, ROWS, {"cache_batch_idx": numbers(4, 0, 2)}),
    "padded": (BATCH, ROWS, {"cache_leftpad": numbers(3, 0, 7)}),
    "pages": (12, PAGE, {"block_table": TABLE}),
    "moved pages": (12, PAGE, {"block_table": TABLE, "cache_batch_idx": numbers(1, 2, 0)}),
    "padded pages": (12, PAGE, {"block_table": TABLE, "cache_leftpad": numbers(3, 0, 7)}),
    "moved and padded": (
        *(5, ROWS),
        {"cache_batch_idx": numbers(4, 0, 2), "cache_leftpad": numbers(3, 0, 7)},
    ),
}
MANGLED: dict[str, tuple[str, dict[str, Tensor], tuple[int, ...]]] = {
    "a full cache": ("rows", {}, (20, ROWS, 8)),
    "one row too few": ("rows", {}, (20, ROWS - 1, 8)),
    "a length of nobody": ("rows", {}, (20, 2**31 - 8, 8)),
    "a length below zero": ("rows", {}, (20, -5, 8)),
    "a full entry": ("moved", {}, (20, ROWS, 8)),
    "an entry of nobody": ("moved", {"cache_batch_idx": numbers(4, 77, 2)}, (20, 5, 8)),
    "a full padded cache": ("padded", {}, (20, ROWS - 1, 8)),
    "a table too short": ("pages", {}, (20, ROWS - 1, 8)),
    "a table with gaps": (
        "pages",
        {"block_table": numbers([3, 1, 5, 0], [2, -1, 9, 4], [8, 6, 10, 11])},
        (20, PAGE - 1, 8),
    ),
    "a page of nobody": (
        "pages",
        {"block_table": numbers([3, 1, 5, 0], [2, 12, 9, 4], [8, 6, 10, 11])},
        (20, PAGE, 8),
    ),
    "padded pages too few": ("padded pages", {}, (20, ROWS - 1, 8)),
    "a table of nobody": ("moved pages", {"cache_batch_idx": numbers(1, 3, 0)}, (20, 9, 8)),
    "a full moved and padded entry": ("moved and padded", {}, (20, ROWS - 1, 8)),
    "a page of another": (  # the first place of clamped numbers belongs to the first sequence
        "pages",
        {"block_table": numbers([0, 1, 5, 3], [2, -1, 9, 4], [8, 6, 10, 11])},
        (0, PAGE, 8),
    ),
}


def call(
    device: str, kind: str, changed: dict[str, Tensor], lengths: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two new keys of each sequence: output, lse, and the cache then."""
    entries, rows, described = CACHES[kind]
    q, k, v = (t.to(device) for t in new_rows(2))
    k_cache, v_cache = (t.to(device) for t in empty_cache(entries, rows))
    options: dict[str, Any] = {n: t.to(device) for n, t in {**described, **changed}.items()}
    result: Any = flash_attn_with_kvcache(
        *(q, k_cache, v_cache, k, v),
        **options,
        cache_seqlens=numbers(*lengths, device=device),
        causal=True,
        return_softmax_lse=True,
    )
    return *result, k_cache, v_cache


def places(described: dict[str, Tensor], sequence: int, rows: int) -> tuple[list[int], list[int]]:
    """The entries and the rows of a cache that two new keys of a sequence go to."""
    place = int(described.get("cache_batch_idx", torch.arange(BATCH))[sequence])
    if "block_table" in described:
        pages, within = zip(*(divmod(rows + new, PAGE) for new in range(2)), strict=True)
        return described["block_table"][place, list(pages)].tolist(), list(within)
    return [place, place], [rows, rows + 1]


def check_others(device: str, case: str) -> None:
    """Sequences 0 and 2 are served as if 1 were in order; of 1 nothing is stored."""
    kind, changed, lengths = MANGLED[case]
    entries, rows, described = CACHES[kind]
    given = {**described, **changed}
    in_order = {name: tensor.clone() for name, tensor in given.items()}
    for name, tensor in in_order.items():
        tensor[1] = described[name][1]
    out, lse, *caches = (t.cpu() for t in call(device, kind, given, lengths))
    wanted = [t.cpu() for t in call(device, kind, in_order, (lengths[0], 9, lengths[2]))]
    torch.testing.assert_close(out[[0, 2]], wanted[0][[0, 2]], rtol=1.6e-2, atol=1.6e-2)
    torch.testing.assert_close(lse[[0, 2]], wanted[1][[0, 2]], rtol=1e-4, atol=1e-4)
    assert not out[1].any()
    assert bool((lse[1] == -torch.inf).all())
    news = new_rows(2)[1:]
    for cache, stored, new in zip(caches, empty_cache(entries, rows), news, strict=True):
        for sequence in (0, 2):
            stored[places(given, sequence, lengths[sequence])] = new[sequence]
        assert torch.equal(cache, stored)


@pytest.mark.parametrize("case", MANGLED)
def test_what_does_not_fit_is_refused_on_the_cpu_and_nothing_is_stored(case: str) -> None:
    kind, changed, lengths = MANGLED[case]
    entries, rows, described = CACHES[kind]
    q, k, v = new_rows(2)
    caches = empty_cache(entries, rows)
    before = [cache.clone() for cache in caches]
    options: dict[str, Any] = {**described, **changed}
    with pytest.raises(
        UnsupportedError, match=r"cache_seqlens\[1\] is|\] is -?\d+, and sequence 1 has \d+ keys"
    ):
        flash_attn_with_kvcache(q, *caches, k, v, **options, cache_seqlens=numbers(*lengths))
    assert all(map(torch.equal, caches, before))


def emulated(
    q: Tensor, k: Tensor, v: Tensor, *, deterministic: bool, validate: bool, **options: Any
) -> Any:
    """`attention` by the kernel that a GPU would run; one that reads what is not there raises."""
    call = Call(q, k, v, **options)
    return plan_for(call).run(call, validate)


@pytest.mark.parametrize(
    "by",
    [
        "torch",
        pytest.param("emulator", marks=pytest.mark.slow),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("case", MANGLED)
def test_what_does_not_fit_is_neither_stored_nor_read_where_the_host_does_not_know(
    case: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "has_values", lambda numbers: False)
    if by == "emulator":
        monkeypatch.setattr(flash_attn, "attention", emulated)
        monkeypatch.setattr(kv_cache, "update_with_torch", update_cache)
    check_others("cuda" if by == "cuda" else "cpu", case)
    if by == "cuda":
        assert int(torch.ones(8, device="cuda").sum()) == 8  # the context still works


@pytest.mark.parametrize("kind", CACHES)
def test_nothing_is_stored_where_nothing_fits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "has_values", lambda numbers: False)
    out, lse, *caches = call("cpu", kind, {}, (ROWS, ROWS - 1, ROWS))
    assert not out.any()
    assert bool((lse == -torch.inf).all())
    entries, rows, _ = CACHES[kind]
    assert all(map(torch.equal, caches, empty_cache(entries, rows)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("lengths", "rows", "message"),
    [
        (63, 2, r"cache_seqlens is 63 and there are 2 new keys;.*64.*allowed are 0 to 62"),
        (65, 0, r"cache_seqlens is 65; the cache has room for 64 keys.*allowed are 0 to 64"),
        (-1, 2, "cache_seqlens is -1"),
        (numbers(0, 0, 0), 65, "65 new keys; the cache has room for 64"),
    ],
    ids=["full", "long", "negative", "shapes"],
)
def test_what_the_host_knows_is_refused_on_every_device(
    device: str, lengths: Any, rows: int, message: str
) -> None:
    q, k, v = (t.to(device) for t in new_rows(max(rows, 1)))
    caches = [t.to(device) for t in empty_cache()]
    before = [cache.clone() for cache in caches]
    given = lengths.to(device) if isinstance(lengths, Tensor) else lengths
    new: dict[str, Any] = {"k": k, "v": v} if rows else {}
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(q[:, :1], caches[0], caches[1], **new, cache_seqlens=given)
    assert all(map(torch.equal, caches, before))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (numbers(5, 65, 0), r"cache_seqlens\[1\] is 65.*allowed are 0 to 64"),
        (numbers(5, 6), r"cache_seqlens has 2 numbers; pass 3"),
        (numbers(5, 6, 7).long(), r"cache_seqlens has shape \(3,\) and is torch\.int64"),
        ([5, 6, 7], "cache_seqlens is a list"),
    ],
    ids=["value", "shape", "dtype", "type"],
)
def test_lengths_are_called_cache_seqlens(lengths: Any, message: str) -> None:
    q, *_ = new_rows(1)
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(q, *empty_cache(), cache_seqlens=lengths)


def test_left_padding_ends_with_the_keys() -> None:
    q, *_ = new_rows(1)
    with pytest.raises(UnsupportedError, match=r"cache_leftpad\[1\] is 9, more than the keys"):
        flash_attn_with_kvcache(
            q, *empty_cache(), cache_seqlens=numbers(4, 8, 12), cache_leftpad=numbers(4, 9, 0)
        )


def test_a_cache_has_as_many_values_as_keys() -> None:
    q, k, v = new_rows(1)
    k_cache, v_cache = empty_cache()
    with pytest.raises(UnsupportedError, match=r"v_cache \(3, 32, 2, 64\); they must agree"):
        flash_attn_with_kvcache(q, k_cache, v_cache[:, :32], k, v, cache_seqlens=40)


def test_the_sequences_of_a_cache_are_those_of_q() -> None:
    q, k, v = new_rows(1)
    with pytest.raises(UnsupportedError, match="described for 2 sequences; q has 3"):
        flash_attn_with_kvcache(q, *empty_cache(2), k, v, cache_seqlens=numbers(0, 0, 0))


@pytest.mark.slow
def test_new_keys_are_stored_in_a_compiled_function_too() -> None:
    q, k, v = new_rows(2)
    lengths = numbers(20, 3, 8)

    def step(q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor) -> Any:
        return flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True
        )

    torch._dynamo.reset()
    eager, compiled = empty_cache(), empty_cache()
    wanted = step(q, *eager, lengths)
    given = torch.compile(step, backend="aot_eager", fullgraph=True)(q, *compiled, lengths)
    torch.testing.assert_close(given, wanted, rtol=1.6e-2, atol=1.6e-2)
    assert all(map(torch.equal, compiled, eager))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"window_size": (-5, 2)}, r"window_size is \(-5, 2\)"),
        ({"window_size": 5}, "window_size is 5; pass a tuple"),
        ({"softcap": -1.0}, r"softcap is -1\.0"),
        ({"softmax_scale": 0.0}, r"softmax_scale is 0\.0"),
        ({"causal": "yes"}, "causal is 'yes'"),
        ({"q": "of 3 heads"}, "q has 3 heads, k_cache and v_cache have 2"),
        ({"q": "of one sequence"}, "the cache is described for 3 sequences; q has 1"),
    ],
    ids=str,
)
def test_nothing_is_stored_by_a_call_that_is_refused(
    device: str, changed: dict[str, Any], message: str
) -> None:
    q, k, v = (t.to(device) for t in new_rows(2))
    if (kind := changed.get("q")) is not None:
        q = {"of 3 heads": q[:, :, :3], "of one sequence": q[:1]}[kind]
        k, v = k[: len(q)], v[: len(q)]
    k_cache, v_cache = caches = [cache.to(device) for cache in empty_cache()]
    before = [cache.clone() for cache in caches]
    options = {name: value for name, value in changed.items() if len(name) > 1}
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=5, **options)
    assert all(map(torch.equal, caches, before))


@pytest.mark.parametrize(
    ("numbers_given", "message"),
    [
        ((1,), "cache_leftpad has 1 numbers; pass 3, one for each sequence of q"),
        ((1, 1, 1, 1), "cache_leftpad has 4 numbers; pass 3"),
        ((0, -1, 0), r"cache_leftpad\[1\] is -1, negative"),
    ],
)
def test_left_padding_is_a_number_of_each_sequence(
    numbers_given: tuple[int, ...], message: str
) -> None:
    q, *_ = new_rows(1)
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(
            q, *empty_cache(), cache_seqlens=8, cache_leftpad=numbers(*numbers_given)
        )


@pytest.mark.parametrize(
    ("place", "given", "message"),
    [
        (0, None, "q is a NoneType; pass a torch.Tensor"),
        (0, torch.tensor(1.0), "q has no dimensions; pass a torch.Tensor"),
        (1, None, "k_cache is a NoneType; pass a torch.Tensor"),
        (2, torch.ones(8), r"v_cache has shape \(8,\); it must be \(batch, seq_cache"),
        (3, "k", "k is a str; pass a torch.Tensor"),
        (3, torch.ones(3, 2), r"k has shape \(3, 2\); new keys are \(batch, seq_new"),
        (4, torch.tensor(1.0), "v has no dimensions; pass a torch.Tensor"),
    ],
)
def test_a_cache_is_made_of_tensors(place: int, given: Any, message: str) -> None:
    q, k, v = new_rows(1)
    args: list[Any] = [q, *empty_cache(), k, v]
    args[place] = given
    q, k_cache, v_cache, k, v = args
    with pytest.raises(UnsupportedError, match=message):
        flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=3)


def test_queries_without_lengths_are_not_taken_for_packed_ones() -> None:
    """Tensors that fitted in one call are known, and whether q was packed is known with them."""
    q, *_ = new_rows(2)
    k_cache, v_cache = empty_cache()
    starts = numbers(0, 2, 4, 6)
    rows = q.flatten(0, 1)
    given: dict[str, Any] = {"cache_seqlens": numbers(20, 3, 8)}
    packed = with_cache(rows, k_cache, v_cache, **given, cu_seqlens_q=starts, max_seqlen_q=2)
    with pytest.raises(UnsupportedError, match=r"q has 3 dimensions, .* allowed are four, unless"):
        with_cache(rows, k_cache, v_cache, **given)
    wanted = with_cache(q, k_cache, v_cache, **given)
    torch.testing.assert_close(packed.view_as(wanted), wanted, rtol=1.6e-2, atol=1.6e-2)
    with pytest.raises(UnsupportedError, match=r"q has 4 dimensions, .* allowed are three, since"):
        with_cache(q, k_cache, v_cache, **given, cu_seqlens_q=starts, max_seqlen_q=2)


def test_tensors_that_fitted_are_known_whatever_was_called_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [(new_rows(rows)[0], *empty_cache(rows=room)) for rows in (1, 2) for room in (32, 64)]
    first = [flash_attn_with_kvcache(*tensors) for tensors in sizes]

    def refuse(*given: Any) -> None:
        raise AssertionError("known tensors are checked again")

    monkeypatch.setattr(kv_cache, "check_shapes", refuse)
    again = [flash_attn_with_kvcache(*tensors) for tensors in sizes]
    for mine, theirs in zip(again, first, strict=True):
        assert isinstance(mine, Tensor)
        assert isinstance(theirs, Tensor)
        assert torch.equal(mine, theirs)
    with pytest.raises(AssertionError, match="checked again"):
        flash_attn_with_kvcache(new_rows(3)[0], *empty_cache())

# SPDX-License-Identifier: Apache-2.0
"""Random calls with a KV cache: kernels store and compute what torch does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.compat import flash_attn, flash_attn_3, kv_cache
from flash_attention.launch.cache_update import update_cache
from flash_attention.reference.judge import cu_seqlens
from tests.compat.rotations import rotation
from tests.compat.test_kv_cache import emulated

pytestmark = pytest.mark.slow  # left out of `make quick`

ON_GPU, EMULATED, CHUNKS = 500, 6, 2
KINDS = 40  # of kernels, so that few are compiled
PAGES = (0, 0, 1, 2, 3, 5, 8, 16, 20, 24, 64)


def drawn(seed: int) -> dict[str, Any]:
    """The arguments of a call. One sequence in eight has no room, no page or no angle."""
    kind, random = Random(seed % KINDS), Random(seed)
    torch_random = torch.Generator().manual_seed(seed)
    group, page, causal = kind.choice((1, 2, 4)), kind.choice(PAGES), kind.random() < 0.5
    d, d_v = kind.choice(((64, 64), (64, 40), (96, 96), (128, 128), (56, 72), (128, 64)))
    dtype, seq_q = kind.choice((torch.bfloat16, torch.float16)), kind.choice((1, 1, 2, 5, 33))
    splits, windowed = kind.choice((0, 0, 1, 3)), kind.random() < 0.2
    pad = kind.random() < 0.4
    index = kind.random() < 0.4 and (pad or page > 0)  # otherwise its length is that of a page
    batch, heads_k, new = random.randint(1, 4), random.randint(1, 2), random.randint(1, 4)
    columns = -(-random.randint(30, 130) // page) if page else 0
    room = columns * page if page else random.randint(30, 130)
    entries = batch + random.randint(0, 2)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=torch_random).to(dtype)

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    given: dict[str, Any] = {
        "q": randn(batch, seq_q, heads_k * group, d),
        "k": randn(batch, new, heads_k, d),
        "v": randn(batch, new, heads_k, d_v),
        "causal": causal,
        "num_splits": splits,
    }
    if windowed:
        given["window_size"] = (random.randint(0, 40), random.randint(0, 5))
    if page:
        total = entries * columns
        table = torch.randperm(total, generator=torch_random).int().reshape(entries, columns)
        given["block_table"] = table if index else table[:batch]
        caches = (total, page)
    else:
        caches = (entries if index else batch, room)
    given["k_cache"], given["v_cache"] = randn(*caches, heads_k, d), randn(*caches, heads_k, d_v)
    if index:
        given["cache_batch_idx"] = ints(*random.sample(range(entries), batch))
    lengths = [random.randint(0, room - new) for _ in range(batch)]
    if pad:
        given["cache_leftpad"] = ints(*(random.randint(0, n + 1) for n in lengths))
    if random.random() < 0.5:
        dim = random.choice([n for n in (16, 32, 48, 64, 128) if n <= d])
        tables = rotation(room + random.choice((0, 40)), dim)
        given["rotary_cos"], given["rotary_sin"] = (t.to(dtype) for t in tables)
        given["rotary_interleaved"] = random.random() < 0.5
    if random.random() < 0.25:
        counts = [random.randint(0, new) for _ in range(batch)]
        given["cu_seqlens_k_new"] = cu_seqlens(counts)
        given["k"], given["v"] = (given[n].flatten(0, 1)[: sum(counts)] for n in "kv")
    for sequence in range(batch):
        if random.random() < 0.125:
            lengths[sequence] = random.choice((room, room - new + 1, -1, 2**31 - 2))
        if page and random.random() < 0.125:
            given["block_table"][sequence, random.randrange(columns)] = random.choice((10**6, -1))
    given["cache_seqlens"] = ints(*lengths)
    return given


def result(given: dict[str, Any], device: str) -> list[Tensor]:
    """The output, the lse and the caches."""
    moved: dict[str, Any] = {
        n: t.clone().to(device) if isinstance(t, Tensor) else t for n, t in given.items()
    }
    function: Any = flash_attn.flash_attn_with_kvcache
    if "cu_seqlens_k_new" in moved:
        function = flash_attn_3.flash_attn_with_kvcache
        moved["page_table"] = moved.pop("block_table", None)
    out, lse, *_ = function(**moved, return_softmax_lse=True)
    return [t.cpu() for t in (out, lse, moved["k_cache"], moved["v_cache"])]


def readable(given: dict[str, Any]) -> bool:
    """Whether every page that is read exists, so that torch can read it too."""
    table = given.get("block_table")
    return table is None or bool(((table >= 0) & (table < len(given["k_cache"]))).all())


def check(seed: int, found: list[Tensor], wanted: list[Tensor]) -> None:
    step = 1.6e-2 if wanted[0].dtype == torch.bfloat16 else 2e-3
    told = f"seed {seed}"
    torch.testing.assert_close(
        *(found[0], wanted[0]), rtol=step, atol=step, msg=lambda text: f"{told}: {text}"
    )
    torch.testing.assert_close(
        *(found[1], wanted[1]), rtol=1e-3, atol=1e-3, msg=lambda text: f"{told}: {text}"
    )
    assert torch.equal(found[2], wanted[2]), told
    assert torch.equal(found[3], wanted[3]), told


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host does not know the values of lengths and tables, as on a GPU."""
    monkeypatch.setattr(kv_cache, "has_values", lambda numbers: False)
    monkeypatch.setattr("flash_attention.reference.cpu.check_lengths", lambda *call: None)


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(
    ("seeds", "device"),
    [
        *((range(n, EMULATED, CHUNKS), "cpu") for n in range(CHUNKS)),
        *(
            pytest.param(range(1000 + n, 1000 + ON_GPU, 10), "cuda", marks=pytest.mark.gpu)
            for n in range(10)
        ),
    ],
    ids=str,
)
def test_kernels_agree_with_torch(
    seeds: range, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {seed: drawn(seed) for seed in seeds}
    by_torch = {seed: result(given, "cpu") for seed, given in calls.items() if readable(given)}
    if device == "cpu":
        monkeypatch.setattr(flash_attn, "attention", emulated)
        monkeypatch.setattr(kv_cache, "update_with_torch", update_cache)
    for seed, given in calls.items():
        found = result(given, device)  # which raises if a kernel accesses what is not there
        if seed in by_torch:
            check(seed, found, by_torch[seed])
    if device == "cuda":
        assert int(torch.ones(8, device="cuda").sum()) == 8

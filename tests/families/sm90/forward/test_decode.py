# SPDX-License-Identifier: Apache-2.0
"""Which decoding problems have their keys split, and into how many splits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.forward.decode import BLOCK_KEYS, Steps, choose_splits
from flash_attention.families.sm90.forward.family import SM90
from flash_attention.families.sm90.forward.features import SplitKind
from flash_attention.families.sm90.forward.splits import KvSplits
from tests.families.problems import recipe_of

ARCH = ARCHES["sm_90"]
SMS = 132
DECODE = Problem(
    batch=1,
    seq_q=1,
    seq_k=8192,
    heads=32,
    heads_k=8,
    d_head=128,
    d_v=128,
    dtype=torch.bfloat16,
    softmax_scale=0.1,
)


def chosen(problem: Problem, split_keys: int | None = None) -> KvSplits | None:
    selected = choose_splits(problem, ARCH, SMS, split_keys)
    if isinstance(selected, str):
        return None
    config, kv_splits = selected
    config.check(ARCH)
    features = SM90.features(config, problem, split=kv_splits)
    assert (features.splits, features.heads_together) == (kv_splits.kind, kv_splits.heads_together)
    assert recipe_of(config, problem, num_sms=SMS, split=kv_splits).features == features
    if kv_splits.kind is not SplitKind.ON_DEVICE:
        last = kv_splits.key_blocks * config.B_c
        assert last - config.B_c < problem.seq_k <= last
    return kv_splits


@pytest.mark.parametrize(
    ("batch", "splits"),
    [
        (1, SplitKind.FIXED),
        (2, SplitKind.FIXED),
        (5, SplitKind.EVEN),
        (14, SplitKind.EVEN),
    ],
)
@pytest.mark.parametrize("seq_k", [32768, 32767, 40000])
def test_every_multiprocessor_gets_as_many_keys(batch: int, splits: SplitKind, seq_k: int) -> None:
    problem = replace(DECODE, batch=batch, seq_k=seq_k)
    kv_splits = chosen(problem)
    assert kv_splits is not None
    assert 0.95 * SMS <= kv_splits.num_ctas(problem, consumers=1) <= SMS
    assert kv_splits.kind is splits  # splits span tiles if they would be much longer otherwise
    assert kv_splits.heads_together == 4


@pytest.mark.parametrize("seq_k", [512, 1000, 1024, 2048, 4096, 8192])
def test_few_keys_of_a_tile_are_split_in_eight(seq_k: int) -> None:
    kv_splits = chosen(replace(DECODE, seq_k=seq_k))
    blocks = -(-seq_k // BLOCK_KEYS)
    assert kv_splits == KvSplits(
        SplitKind.FIXED, -(-blocks // 8), blocks, heads_together=4, one_launch=True
    )


@pytest.mark.parametrize(("batch", "blocks"), [(1, 1), (1, 4), (4, 8)])
def test_few_blocks_are_not_split(batch: int, blocks: int) -> None:
    kv_splits = chosen(replace(DECODE, batch=batch, seq_k=blocks * BLOCK_KEYS))
    assert kv_splits == KvSplits(SplitKind.WHOLE, blocks, blocks, heads_together=4)


def test_the_last_cta_combines_few_rows_of_few_parts() -> None:
    decode = replace(DECODE, seq_k=20 * BLOCK_KEYS, heads_k=32)
    many = KvSplits(SplitKind.FIXED, blocks=1, key_blocks=33, heads_together=1)
    assert not many.with_launches(decode).one_launch
    assert replace(many, key_blocks=32).with_launches(decode).one_launch
    assert replace(many, key_blocks=20, heads_together=4).with_launches(decode).one_launch
    assert not replace(many, key_blocks=21, heads_together=4).with_launches(decode).one_launch


@pytest.mark.parametrize(
    ("heads", "kv_splits"),
    [(32, KvSplits(SplitKind.WHOLE, blocks=128, key_blocks=128, heads_together=4)), (8, None)],
)
def test_many_entries_are_not_split(heads: int, kv_splits: KvSplits | None) -> None:
    assert chosen(replace(DECODE, batch=17, heads=heads)) == kv_splits


@pytest.mark.parametrize(
    "change",
    [
        {"seq_q": 17, "seq_k": 300},
        {"heads": 520},
        {"seq_k": 0},
        {"d_head": 264},
    ],
)
def test_other_kernels_serve_the_rest(change: dict[str, object]) -> None:
    assert chosen(replace(DECODE, **change)) is None  # type: ignore[arg-type]


def test_a_window_that_hides_most_keys_is_not_split() -> None:
    kv_splits = chosen(replace(DECODE, window=(1000, 0)))
    assert kv_splits is not None
    assert kv_splits.kind is SplitKind.WHOLE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"seq_q": 17, "seq_k": 300},
            "17 queries of 4 heads that share one of k and v do not fit in 64 rows",
        ),
        ({"seq_k": 0}, "there is nothing to compute"),
        ({"d_head": 264}, "d_head"),
        ({"window": (99, 0), "heads": 8}, "the window shows lie in few of any splits, and no"),
        ({"seq_k": 64, "heads": 8}, "64 keys are too few to split, and no heads share"),
        ({"batch": 17, "heads": 8}, "136 tiles keep 132 multiprocessors busy, and no heads share"),
    ],
)
def test_what_is_not_split_says_why(change: dict[str, object], why: str) -> None:
    problem = replace(DECODE, **change)  # type: ignore[arg-type]
    reason = choose_splits(problem, ARCH, SMS)
    assert isinstance(reason, str)
    assert why in reason


def test_a_window_over_most_keys_is_split() -> None:
    assert chosen(replace(DECODE, window=(5000, 0))) == chosen(DECODE)


@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("heads", [8, 56, 128])
def test_every_head_dimension_has_a_config(d_head: int, heads: int) -> None:
    problem = replace(DECODE, d_head=d_head, d_v=d_head, heads=heads, seqused_k=True)
    assert chosen(problem) is not None
    assert chosen(replace(problem, page_keys=16, pages=1000)) is not None


@pytest.mark.parametrize("lengths", [{"seqused_k": True}, {"total_q": 7}])
@pytest.mark.parametrize(("d_head", "side_by_side"), [(128, 2), (256, 1)])
def test_the_device_splits_sequences_that_differ_in_length(
    lengths: dict[str, object], d_head: int, side_by_side: int
) -> None:
    for batch, seq_k in ((1, 64), (7, 5000), (300, 100_000)):
        ctas = SMS if batch == 1 else side_by_side * SMS
        problem = replace(DECODE, batch=batch, seq_k=seq_k, d_head=d_head, d_v=d_head, **lengths)  # type: ignore[arg-type]
        kv_splits = chosen(problem)
        assert kv_splits == KvSplits(SplitKind.ON_DEVICE, 1, 1, 4, one_launch=True, ctas=ctas)
        assert kv_splits.num_ctas(problem, consumers=1) == ctas
        # Every CTA has two partial results of four rows at most, whatever the lengths.
        assert kv_splits.scratch(problem, 1) == {
            "o_partial": 2 * ctas * 4 * d_head * 4,
            "lse_partial": 2 * ctas * 4 * 4,
        }


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Steps.DECODE, {"total_q": 300, "batch": 100, "seq_q": 16}),
        (Steps.CHUNK, {"total_q": 100, "batch": 84, "seq_q": 17}),
        (Steps.CHUNK, {"total_q": 100, "batch": 84, "seq_q": 17, "seq_k": 1024}),
        (Steps.MANY_TILES, {"total_q": 100, "batch": 84, "seq_q": 17, "seq_k": 1023}),
        (Steps.CHUNK, {"total_q": 352, "seq_q": 352}),  # two thirds of a wave
        (Steps.MANY_TILES, {"total_q": 353, "seq_q": 353}),
        (Steps.CHUNK, {"total_q": 704, "seq_q": 704}),
        (Steps.MANY_TILES, {"total_q": 705, "seq_q": 705}),
        (Steps.CHUNK, {"batch": 2, "total_q": 1055, "seq_q": 1055, "seq_k": 2110}),
        (Steps.MANY_TILES, {"batch": 2, "total_q": 1056, "seq_q": 1055, "seq_k": 2110}),
        (Steps.MANY_TILES, {"batch": 2, "total_q": 1055, "seq_q": 1055, "seq_k": 2109}),
        (Steps.CHUNK, {"batch": 2, "total_q": 1847, "seq_q": 1000, "seq_k": 6000}),
        (Steps.MANY_TILES, {"batch": 2, "total_q": 1848, "seq_q": 1000, "seq_k": 6000}),
        (Steps.MANY_TILES, {"batch": 2, "total_q": 1847, "seq_q": 1000, "seq_k": 5999}),
        (Steps.MANY_TILES, {"batch": 19, "seq_q": 100, "seqused_k": True}),
        (Steps.CHUNK, {"batch": 18, "seq_q": 100, "seqused_k": True}),
    ],
)
def test_chunks_of_few_tiles_are_split_too(kind: Steps, change: dict[str, object]) -> None:
    problem = replace(DECODE, **change)  # type: ignore[arg-type]
    assert Steps.of(problem, SMS) is kind
    assert (chosen(problem) is None) is (kind is Steps.MANY_TILES)


@pytest.mark.parametrize(
    ("kind", "batch"), [(Steps.MANY_TILES, 32), (Steps.CHUNK, 33), (Steps.CHUNK, 128)]
)
def test_keys_that_are_converted_are_split_in_more_tiles(kind: Steps, batch: int) -> None:
    """FP8 kernels do not transpose V of more than 512 MiB."""
    step = {"total_q": 4096, "seq_q": 3900, "seq_k": 1 << 14, "page_keys": 16, "seqused_k": True}
    mixed = replace(DECODE, dtype=torch.float8_e4m3fn, batch=batch, **step)  # type: ignore[arg-type]
    assert Steps.of(mixed, SMS) is kind
    wide = replace(mixed, dtype=torch.bfloat16)
    assert Steps.of(wide, SMS) is Steps.MANY_TILES


@pytest.mark.parametrize("batch", [1, 3, 200])
@pytest.mark.parametrize("seq_k", [100, 5000])
@pytest.mark.parametrize("heads", [8, 32])
def test_fixed_splits_depend_on_nothing_else(batch: int, seq_k: int, heads: int) -> None:
    problem = replace(DECODE, batch=batch, seq_k=seq_k, heads=heads, seqused_k=True)
    kv_splits = chosen(problem, split_keys=512)
    assert kv_splits is not None
    assert kv_splits.kind is SplitKind.FIXED
    assert (kv_splits.blocks, kv_splits.key_blocks) == ((8, 79) if seq_k > 512 else (2, 2))


def test_fixed_splits_are_whole_blocks() -> None:
    with pytest.raises(UnsupportedError, match=r"split_keys is 96.*blocks of 64"):
        choose_splits(DECODE, ARCH, SMS, split_keys=96)


def test_other_architectures_split_nothing() -> None:
    for split_keys in (None, 64):
        why = choose_splits(DECODE, ARCHES["sm_80"], SMS, split_keys)
        assert isinstance(why, str)
        assert "needs sm_90" in why

# SPDX-License-Identifier: Apache-2.0
"""The family of MLA kernels: what it chooses, its recipes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention, explain, forward
from flash_attention.arch import ARCHES, MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.call.features import CAUSAL, PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.choose.rules import choose
from flash_attention.compile import compile_kernel
from flash_attention.errors import UnsupportedError
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import unit_of
from flash_attention.families.sm90.forward.features import SplitKind
from flash_attention.families.sm90.mla.family import SM90_MLA
from flash_attention.families.sm90.mla.features import MlaFeatures, ctas_of, ctas_of_tile
from flash_attention.families.sm90.mla.splits import choose_splits, whole
from flash_attention.kernel_configs import DType
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv
from flash_attention.reference.oracle import oracle
from tests.families.sm90.mla.cases import FULL, NARROW, Case

SMS = 132


def problem(batch: int, keys: int, *, heads: int = 128, queries: int = 1, **others: Any) -> Problem:
    return Problem(*(batch, queries, keys, heads, 1, 576, 512, torch.bfloat16, 576**-0.5), **others)


def tensors(keys: int = 70, heads: int = 16, d: int = 576, batch: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(batch, 1, heads, d, generator=generator).bfloat16()
    return q, torch.randn(batch, keys, 1, d, generator=generator).bfloat16()


# choosing


@pytest.mark.parametrize(
    "others", [{}, {"causal": True}, {"seqused_k": True}, {"page_keys": 64}, {"total_q": 4}]
)
def test_head_dimensions_of_mla_choose_its_kernel(others: dict[str, Any]) -> None:
    pages = {"pages": 64} if "page_keys" in others else {}
    choice = choose(problem(4, 1024, **others, **pages), Setting(MEASURED_ARCH, SMS))
    assert choice.config == FULL
    assert "is MLA" in SM90_MLA.why(FULL, problem(4, 1024), choice.setting.split)


@pytest.mark.parametrize(
    ("batch", "keys", "heads", "grid"),
    [
        (1, 64, 16, (1, 1)),  # too few keys to split
        (1, 1024, 128, (8, 2)),  # two blocks a split
        (1, 65536, 128, (64, 2)),  # 16 blocks a split
        (16, 65536, 128, (66, 2)),  # one split for every multiprocessor
        (64, 8192, 128, (64, 2)),  # a tile each
        (128, 8192, 128, (66, 2)),  # the CTAs of a tile run together
        (128, 8192, 16, (128, 1)),
        (132, 8192, 64, (132, 1)),
        (3, 1024, 96, (24, 2)),
    ],
)
def test_splits_fill_the_gpu(batch: int, keys: int, heads: int, grid: tuple[int, int]) -> None:
    asked = problem(batch, keys, heads=heads)
    kv_splits = choose_splits(asked, SMS)
    sharing = ctas_of_tile(heads, asked.seq_q)
    assert (kv_splits.num_ctas(asked, sharing), sharing) == grid
    assert kv_splits.heads_together == heads


@pytest.mark.parametrize(
    ("heads", "queries", "ctas", "box"),
    [
        *((1, 1, 1, (1, 64)), (16, 1, 1, (16, 4)), (24, 1, 1, (24, 2)), (64, 1, 1, (64, 1))),
        *((96, 1, 2, (48, 1)), (128, 1, 2, (64, 1)), (72, 1, 2, (36, 1)), (67, 1, 67, (1, 1))),
        *((16, 4, 1, (16, 4)), (16, 9, 3, (16, 4)), (64, 2, 2, (64, 1)), (128, 4, 8, (64, 1))),
        *((128, 100, 8, (64, 1)), (16, 1000, 8, (16, 4)), (0, 1, 1, (1, 64))),
    ],
)
def test_rows_are_shared_evenly(heads: int, queries: int, ctas: int, box: tuple[int, int]) -> None:
    assert ctas_of_tile(heads, queries) == ctas
    assert MlaFeatures(heads_together=max(heads, 1)).q_box == box


@pytest.mark.parametrize(
    ("batch", "total", "longest", "heads", "tiles", "ctas"),
    [
        (4, 4, 1, 128, 4, 2),  # one query each
        (4, 16, 4, 128, 4, 8),  # four each
        (64, 575, 512, 128, 191, 8),  # one of 512, and 63 of one
        (64, 67, 4, 128, 65, 4),  # nearly all of one: tiles of two queries
        (3, 0, 0, 16, 0, 1),
    ],
)
def test_tiles_of_packed_queries_are_few(
    batch: int, total: int, longest: int, heads: int, tiles: int, ctas: int
) -> None:
    asked = problem(batch, 1024, heads=heads, queries=longest, total_q=total)
    assert ctas_of(asked) == ctas
    assert whole(asked).num_tiles(asked, ctas) == tiles


def test_split_keys_makes_splits_that_do_not_depend_on_the_batch() -> None:
    choice = choose(problem(4, 1000), Setting(MEASURED_ARCH, SMS), split_keys=256)
    assert (choice.setting.split.kind, choice.setting.split.blocks) == (SplitKind.FIXED, 4)
    with pytest.raises(
        UnsupportedError, match="split_keys is 100, and the kernel visits keys in b"
    ):
        choose(problem(4, 1000), Setting(MEASURED_ARCH, SMS), split_keys=100)


def test_a_kernel_without_a_problem_is_that_of_128_heads() -> None:
    assert SM90_MLA.resolve(FULL, PLAIN).heads_together == 128
    assert unit_of(FULL, CAUSAL).name.endswith("_causal_heads_128_decode_ctas_2")


# compiled kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "asked"),
    [
        pytest.param(
            config,
            asked,
            id=f"{config}-{asked}",
            marks=() if place < 4 and place % 2 == deferred else pytest.mark.exhaustive,
        )
        for deferred, config in enumerate((FULL, replace(FULL, defer_values=True)))
        for place, asked in enumerate(
            (
                (PLAIN, SplitKind.WHOLE, False),
                (CAUSAL, SplitKind.EVEN, False),
                (Features(per_batch=True, page_keys=64), SplitKind.EVEN, True),
                (Features(per_batch=True, page_keys=1), SplitKind.WHOLE, False),
                (PLAIN, SplitKind.EVEN, False),
                (CAUSAL, SplitKind.WHOLE, False),
                (Features(per_batch=True, page_keys=64), SplitKind.WHOLE, False),
                (Features(per_batch=True, page_keys=64), SplitKind.WHOLE, True),
                (Features(per_batch=True, page_keys=64), SplitKind.EVEN, False),
                (Features(per_batch=True, page_keys=1), SplitKind.WHOLE, True),
                (Features(per_batch=True, page_keys=1), SplitKind.EVEN, False),
                (Features(per_batch=True, page_keys=1), SplitKind.EVEN, True),
            )
        )
    ],
)
def test_loops_are_neither_serialised_nor_short_of_registers(
    config: Any, asked: tuple[Features, SplitKind, bool]
) -> None:
    features, splits, packed = asked
    resolved = SM90_MLA.resolve(config, features)
    compiled_for = replace(resolved, splits=splits, packed_queries=packed)
    unit = SM90_MLA.unit(config, compiled_for, MEASURED_ARCH)
    compiled = compile_kernel(unit.source, arch=unit.target, name=unit.name)
    assert compiled.resources.notes == ()
    assert compiled.resources.spill_store_bytes <= (16 if config.defer_values else 0)


# recipes


def test_a_recipe_loads_k_alone() -> None:
    made = Case(1, 330, heads=128, batch=3).make(512)
    recipe = made.plan(FULL).recipe
    (main,) = recipe.steps
    assert main.geometry.grid == (3, 2, 1)
    assert main.geometry.smem_bytes == FULL.smem_bytes()
    assert list(main.maps) == ["q", "k"]
    assert main.maps["q"].box == (64, 64, 1, 1)
    assert main.maps["k"].box == (64, 1, 64, 1)
    assert recipe.refusal is not None


def test_partial_results_of_all_heads_are_combined_by_a_second_kernel() -> None:
    made = Case(1, 330, heads=128, batch=3, split_keys=128).make(512)
    recipe = Plan(made.call, FULL).recipe
    main, combine = recipe.steps
    assert main.geometry.grid == (3 * 3, 2, 1)
    assert combine.geometry.grid == (3 * 128, 1, 1)
    assert recipe.scratch == {"o_partial": 9 * 128 * 512 * 4, "lse_partial": 9 * 128 * 4}


def test_rows_of_packed_queries_are_combined_one_by_one() -> None:
    made = Case(4, 330, heads=128, batch=3, queries=(1, 4, 2), split_keys=128).make(512)
    main, combine = Plan(made.call, FULL).recipe.steps
    assert main.geometry.grid == (3 * 4, 6, 1)  # three splits of a tile of three queries
    assert combine.geometry.grid == (7 * 128, 1, 1)
    assert combine.unit.name == "combine_bf16_384_heads_128_fixed_v512_packed"


def test_keys_of_a_given_config_are_split_as_those_of_a_chosen_one() -> None:
    made = Case(1, 330, heads=128, batch=3).make(512)
    plan = Plan(made.call, FULL)
    recipe = SM90_MLA.recipe(FULL, plan.problem, plan.views, Setting(MEASURED_ARCH, SMS))
    assert recipe.steps[0].geometry.grid == (9, 2, 1)  # two blocks a split


def test_pages_narrow_the_boxes_of_keys() -> None:
    made = Case(1, 320, batch=2, used=(320, 10), page_keys=16).make(512)
    main = Plan(made.call, FULL).recipe.steps[0]
    assert main.maps["k"].box == (64, 1, 16, 1)


def test_a_launch_takes_only_so_many_tiles() -> None:
    large = problem(1 << 20, 1 << 20)
    views = Plan(Case().make(512).call, FULL).views
    with pytest.raises(UnsupportedError, match="a launch takes at most 2147483647"):
        SM90_MLA.recipe(FULL, large, views, Setting(MEASURED_ARCH, SMS))


# refusing


def test_v_has_to_be_part_of_k() -> None:
    q, k = tensors()
    with pytest.raises(UnsupportedError, match=r"v as the first 512 columns of k: pass v=k\[..."):
        forward(FULL, q, k, k[..., :512].contiguous())
    with pytest.raises(UnsupportedError, match=r"MLA kernels read v as the first columns of k: pa"):
        forward(FULL, q, k, k[..., 64:])


def test_a_plan_checks_v_in_every_call() -> None:
    q, k = tensors(d=192)
    forward(NARROW, q, k, k[..., :128])
    with pytest.raises(UnsupportedError, match="v starts at address"):
        forward(NARROW, q, k, k[..., 64:])
    with pytest.raises(UnsupportedError, match="v starts at address"):
        forward(NARROW, q, k, k.clone()[..., :128])


def test_other_shapes_are_refused() -> None:
    q, k = tensors()
    two = torch.cat((k, k), dim=2)
    with pytest.raises(UnsupportedError, match="one head of k and v, and there are 2"):
        forward(FULL, q, two, two[..., :512])
    with pytest.raises(UnsupportedError, match="d_head 192 and d_v 128, the tensors have 576 and"):
        forward(NARROW, q, k, k[..., :512])
    with pytest.raises(UnsupportedError, match=r"config is for torch\.bfloat16, the tensors are"):
        forward(FULL, q.half(), k.half(), k.half()[..., :512])
    with pytest.raises(UnsupportedError, match=r"at most 512, or 576 with a v of 512 columns of"):
        forward(FULL, q, k, k[..., :256])


def test_other_architectures_have_no_kernel() -> None:
    with pytest.raises(UnsupportedError, match=r"no kernel runs .* on sm_80: Hopper kernels need"):
        choose(problem(1, 1024), Setting(ARCHES["sm_80"], SMS))


def test_two_heads_of_k_have_no_kernel() -> None:
    with pytest.raises(UnsupportedError, match=r"no kernel runs .*: MLA kernels read one head of"):
        choose(replace(problem(1, 1024), heads_k=2), Setting(MEASURED_ARCH, SMS))


def test_gradients_on_a_gpu_are_refused() -> None:
    q = torch.empty(1, 1, 16, 576, dtype=torch.bfloat16, device="meta", requires_grad=True)
    k = torch.empty(1, 70, 1, 576, dtype=torch.bfloat16, device="meta")
    with pytest.raises(UnsupportedError, match=r"\(MLA\), and no kernel computes their gradients"):
        attention(q, k, k[..., :512])


# the rest of the package


def test_attention_of_no_keys_is_zero() -> None:
    q, k = tensors(keys=0)
    out = attention(q, k, k[..., :512], config=FULL)
    assert (out.shape, out.abs().max().item()) == ((1, 1, 16, 512), 0)


@pytest.mark.parametrize("shape", [(0, 1, 16, 576), (1, 0, 16, 576), (1, 1, 0, 576)])
def test_attention_of_no_queries_is_empty(shape: tuple[int, ...]) -> None:
    k = torch.zeros(shape[0], 70, 1, 576, dtype=torch.bfloat16)
    out = attention(torch.zeros(shape, dtype=torch.bfloat16), k, k[..., :512], config=FULL)
    assert out.shape == (*shape[:-1], 512)


@pytest.mark.parametrize("starts", [(1, 2, 2, 4), (0, 0, 0, 0)])
@pytest.mark.parametrize("split_keys", [None, 64])
def test_rows_of_no_sequence_are_left_alone(
    starts: tuple[int, ...], split_keys: int | None
) -> None:
    q, k = (t[..., :192].contiguous() for t in tensors(keys=130, batch=3))
    rows = torch.cat((q, q))[:, 0]
    packed: Any = {
        "cu_seqlens_q": torch.tensor(starts, dtype=torch.int32),
        "max_seqlen_q": max(b - a for a, b in pairwise(starts)),
        "split_keys": split_keys,
    }
    out = forward(NARROW, rows, k, k[..., :128], **packed)  # the emulator fills it with NaN first
    for sequence, (start, end) in enumerate(pairwise(starts)):
        keys = k[sequence : sequence + 1]
        exact = oracle(rows[None, start:end], keys, keys[..., :128])
        torch.testing.assert_close(out[None, start:end].double(), exact, rtol=0, atol=1e-2)
    outside = torch.cat((out[: starts[0]], out[starts[-1] :]))
    assert bool(outside.isnan().all())  # as it was before


def test_torch_computes_on_the_cpu() -> None:
    q, k = tensors()
    out = attention(q, k, k[..., :512])
    torch.testing.assert_close(out.double(), oracle(q, k, k[..., :512]), rtol=0, atol=1e-2)


def test_explain_counts_the_bytes_of_k_once() -> None:
    q, k = tensors(keys=1000, heads=128)
    text = str(explain(q, k, k[..., :512]))
    assert "hopper_mla(BF16, 512): lazy_8+rotary_in_registers" in text
    assert "combine_bf16_128_heads_128_even_v512" in text
    num_bytes = 2 * (1000 * 576 + 128 * (576 + 512))
    assert f"{num_bytes / 1e6:.3f} MB" in text


def test_a_call_of_a_given_config_may_ask_for_splits() -> None:
    made = Case(1, 130, split_keys=64).make(NARROW.d_v)
    call: Call = made.call
    out = forward(NARROW, call.q, call.k, call.v, split_keys=64)
    made.assert_right(out, None)


def test_build_compiles_what_decoding_launches() -> None:
    plain, paged = SM90_MLA.built_features()
    assert plain == chosen_features(problem(16, 8192))
    assert paged == chosen_features(problem(16, 8192, seqused_k=True, page_keys=64, pages=2048))
    (combine,) = SM90_MLA.companions(FULL, MEASURED_ARCH)
    assert combine.name == "combine_bf16_128_heads_128_even_v512"


def chosen_features(asked: Problem) -> Features:
    split = choose(asked, Setting(MEASURED_ARCH, SMS)).setting.split
    return SM90_MLA.features(FULL, asked, split=split)


def test_generated_tensors_of_mla_share_memory() -> None:
    _, k, v = generate_qkv(1, 1, 16, 576, DType.BF16, seq_len_k=70, n_heads_k=1, d_v=512)
    assert v.data_ptr() == k.data_ptr()
    assert (v.shape, v.stride()) == ((1, 70, 1, 512), k.stride())

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.backward_call import Wanted
from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind
from flash_attention.compile import compile_kernel
from flash_attention.errors import UnsupportedError
from flash_attention.families.backward_args import VIEWS
from flash_attention.families.recipe import Recipe, Setting
from flash_attention.families.sm90.backward.family import SM90_BACKWARD
from flash_attention.families.sm90.backward.heuristic import heuristic
from flash_attention.families.sm90.backward.queries import Product, query_unit
from tests.families.problems import view
from tests.families.sm90.backward.cases import config
from tests.families.sm90.backward.test_heuristic import PROBLEM, problem
from tests.families.sm90.backward.test_rungs import SPILLED
from tests.gate import in_turn

FASTEST = config()
STORED = config(dq="workspace")
WIDE = config(256, dq="workspace", derivative="exact", schedule="split")


def recipe(kernel: Any, num_sms: int = 132, **change: Any) -> Recipe:
    problem = replace(PROBLEM, **{"heads_k": 4, **change})
    shapes = {"q": problem.heads, "o": problem.heads, "d": problem.heads}
    views = [
        view(
            name,
            *(problem.batch, problem.seq_q, shapes.get(name[-1], problem.heads_k), problem.d_head),
            dtype=problem.dtype,
        )
        for name in VIEWS
    ]
    return SM90_BACKWARD.recipe(kernel, problem, views, Setting(MEASURED_ARCH, num_sms))


def test_sums_of_dq_are_cleared_before_and_converted_after() -> None:
    made = recipe(FASTEST)
    names = [step.unit.name for step in made.steps]
    assert names == [
        "backward_prepare_bf16_16_128",
        FASTEST.kernel_name(),
        "backward_convert_bf16_128_bylane",
    ]
    main = made.steps[1]
    assert main.geometry.grid == (2 * 4 * 4, 1, 1)  # batch, heads of k, tiles of keys
    assert (main.geometry.block, main.geometry.smem_bytes) == (512, FASTEST.smem_bytes())
    assert {name: each.box for name, each in main.maps.items()} == {
        "q": (64, 1, 64, 1),
        "k": (64, 1, 128, 1),
        "v": (64, 1, 128, 1),
        "d_o": (64, 1, 64, 1),
        "dk": (64, 1, 16, 1),
        "dv": (64, 1, 16, 1),
    }
    assert made.scratch == {
        "lse_log2": 4 * 4 * 1024,
        "delta": 4 * 4 * 1024,
        "dq_sum": 4 * 4 * 1024 * 128,
    }
    assert (made.tiles, made.counts_tiles) == (32, False)


def test_splits_of_the_heads_are_added_up() -> None:
    made = recipe(FASTEST, heads_k=1)
    assert made.arguments.head_splits == 4
    names = [step.unit.name for step in made.steps]
    assert names[1:] == [
        f"{FASTEST.kernel_name()}_splits_heads",
        "backward_convert_and_add_splits_bf16_128_bylane",
    ]
    assert made.steps[1].geometry.grid == (2 * 4 * 4, 1, 1)  # batch, splits, tiles of keys
    rows, keys = (
        2 * 4 * 4,
        2 * 4,
    )  # blocks of queries and of keys: batch, heads and blocks of a head
    assert made.steps[2].geometry.grid == (rows + 2 * 4 * keys, 1, 1)  # 4 parts of dK and of dV
    sums = 4 * 1024 * 128  # to which all splits add
    assert made.scratch["dk_sum"] == made.scratch["dv_sum"] == sums
    assert (names[0], made.arguments.key_sums) == ("backward_prepare_bf16_16_128_keys_128", 1)
    in_turn = config(dq="ordered", schedule="paired", order="dynamic_8")  # whose bits repeat
    turns = recipe(in_turn, heads_k=1)
    assert turns.scratch["dk_sum"] == turns.arguments.key_sums * sums
    assert turns.arguments.key_sums == turns.arguments.head_splits > 1


def test_a_persistent_kernel_has_as_many_ctas_as_multiprocessors() -> None:
    made = recipe(config(order="dynamic_8"), num_sms=10)
    assert made.steps[1].geometry.grid == (10, 1, 1)
    assert made.counts_tiles


@pytest.mark.parametrize("kernel", [STORED, WIDE])
def test_stored_ds_needs_no_sums(kernel: Any) -> None:
    made = recipe(kernel, d_head=kernel.d_head, d_v=kernel.d_head)
    assert len(made.steps) == 3
    queries = made.steps[2]
    assert queries.unit.name == f"hopper_queries_bf16_d{kernel.d_head}_stored_8"
    assert queries.geometry.grid == (2 * 4 * 4, 1, 1)  # batch, heads of q, tiles of 128 queries
    assert set(made.scratch) == {"lse_log2", "delta", "ds"}
    assert made.scratch["ds"] == 2 * 4 * 512 * 512 * 2


def test_addresses_of_scratch_memory_follow_the_arguments() -> None:
    """The launch stores them from the first to the last."""
    for kernel in (FASTEST, WIDE):
        made = recipe(kernel, heads_k=1, d_head=kernel.d_head, d_v=kernel.d_head)
        places = [getattr(type(made.arguments), name).offset for name in made.scratch]
        assert places == sorted(places)
        assert {"dk_sum", "dv_sum"} <= set(made.scratch)


def test_tiles_in_order_need_no_kernel_that_clears_or_converts() -> None:
    kernel = config(dq="ordered", order="dynamic_8")
    made = recipe(kernel, deterministic=True)
    names = [step.unit.name for step in made.steps]
    assert names == ["backward_prepare_bf16_16_ordered", kernel.kernel_name()]
    assert list(made.steps[1].maps) == ["q", "k", "v", "d_o", "dq", "dk", "dv"]
    assert made.steps[1].maps["dq"].box == (64, 1, 16, 1)
    rows = 4 * 2 * 512  # heads, batch, queries
    assert made.scratch == {
        "lse_log2": 4 * rows,
        "delta": 4 * rows,
        "dq_sum": 4 * rows * 128,
        "dq_semaphore": 4 * rows // 64,
    }


def test_without_dq_nothing_follows_the_kernel() -> None:
    made = recipe(config(dq="none", ds=0), wanted=Wanted(dq=False))
    assert len(made.steps) == 2
    assert set(made.scratch) == {"lse_log2", "delta"}


@pytest.mark.parametrize(
    ("kernel", "change", "said"),
    [
        (
            FASTEST,
            {"deterministic": True},
            "deterministic=True is asked for, and the kernel config adds dq up in any order; pass a"
            " config with query_gradient=QueryGradient.ORDERED or WORKSPACE, or leave config out",
        ),
        (
            FASTEST,
            {"wanted": Wanted(dq=False)},
            "dq is not wanted, and the kernel config has"
            " query_gradient=QueryGradient.OWN_WARPGROUP; NONE is for calls that do not want dq,"
            " and the others for calls that do",
        ),
        (
            FASTEST,
            {"wanted": Wanted(dq=False, dk=False, dv=False, dsinks=True)},
            "Hopper backward kernels compute dq, dk or dv, and none of them is wanted; pass a"
            " FlashBackwardKernelConfig, or leave config out",
        ),
        (
            FASTEST,
            {"d_head": 136},
            "the kernel config is for d_head up to 128, q and k have d_head 136; pass a config with"
            " at least their d_head",
        ),
    ],
)
def test_what_a_config_does_not_compute_is_refused(
    kernel: Any, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedError) as error:
        recipe(kernel, **change)
    assert str(error.value) == said


def test_configs_suit_what_they_compute() -> None:
    assert SM90_BACKWARD.suits(FASTEST, PROBLEM)
    assert SM90_BACKWARD.suits(STORED, PROBLEM)
    assert not SM90_BACKWARD.suits(FASTEST, replace(PROBLEM, deterministic=True))
    assert not SM90_BACKWARD.suits(FASTEST, replace(PROBLEM, wanted=Wanted(dq=False)))


def test_sinks_are_in_the_log_sum_exp_and_change_no_kernel() -> None:
    plain = SM90_BACKWARD.unit(FASTEST, PLAIN, MEASURED_ARCH)
    assert SM90_BACKWARD.unit(FASTEST, Features(sinks=True), MEASURED_ARCH) == plain


def test_softcap_binds_the_score_and_its_slopes() -> None:
    plain = SM90_BACKWARD.unit(STORED, PLAIN, MEASURED_ARCH).source
    capped = SM90_BACKWARD.unit(STORED, Features(softcap=True), MEASURED_ARCH).source
    bound = ("score::Plain", "slopes::Ones"), ("score::Softcap", "slopes::Pairs")
    for source, (mine, others) in ((plain, bound), (capped, bound[::-1])):
        assert [word in source for word in (*mine, *others)] == [True, True, False, False]
    features = Features(softcap=True, per_batch=True)
    product = Product(STORED.dtype, STORED.d_head, STORED.group_heads)
    of_lengths = query_unit(product, replace(features, softcap=False), adds=False)
    assert query_unit(product, features, adds=False) == of_lengths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "asks"),
    in_turn(
        product([64, 128, 256], [False, True]),
        product([0.0, 5.0], [CAUSAL, Features(MaskKind.WINDOW, per_batch=True)]),
    ),
)
def test_kernels_of_the_heuristic_spill_little_and_serialise_nothing(
    kernel: tuple[int, bool], asks: tuple[float, Features]
) -> None:
    (d_head, deterministic), (softcap, features) = kernel, asks
    asked = replace(problem(d_head), deterministic=deterministic, softcap=softcap)
    config = heuristic(asked, MEASURED_ARCH)
    assert not isinstance(config, str)
    features = replace(features, softcap=softcap > 0)
    units = [SM90_BACKWARD.unit(config, features, MEASURED_ARCH)]
    if not config.adds_dq:
        product_of = Product(config.dtype, config.d_head, config.group_heads)
        units.append(query_unit(product_of, features, adds=True))
    for unit in units:
        resources = compile_kernel(unit.source, arch=unit.target, name=unit.name).resources
        assert resources.notes == (), unit.name
        assert resources.spill_bytes <= SPILLED, unit.name

# SPDX-License-Identifier: Apache-2.0
"""Launch plans of features: what is packed of them, and what they add to a plan's key."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.call import Extras, Options
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
)
from flash_attention.launch.plan import EMULATED_SMS, SELECT, new_plan, plan_for
from tests.launch.test_plan import D_HEAD, grouped, values

HOPPER = HopperForwardKernelConfig(DType.FP16, 64, 2, 128, 2, tma=True, specialised=True)


@pytest.mark.usefixtures("no_compile")
def test_a_hopper_plan_packs_what_the_problem_says() -> None:
    q, k, v = grouped()
    options = Options(causal=True, softmax_scale=0.5, return_lse=True)
    plan = plan_for(HOPPER, q, k, v, None, options=options)
    packed = values(plan.bind(q, k, v, None))
    expected = {"batch": 1, "heads": 6, "heads_per_kv": 3, "seq_len_q": 100, "seq_len_k": 77}
    assert {name: packed[name] for name in expected} == expected
    assert packed["k_stride"] == (77 * 2 * D_HEAD, 2 * D_HEAD, D_HEAD)
    assert packed["softmax_scale"] == 0.5
    assert (plan.problem.causal, plan.arch) == (True, ARCHES["sm_90"])
    assert (packed["lse_batch_stride"], packed["lse_head_stride"]) == (600, 100)
    assert plan.geometry.grid == (6, 1, 1)


@pytest.mark.usefixtures("no_compile")
def test_a_plan_of_a_window_a_softcap_and_other_columns_packs_them() -> None:
    q, k, _ = grouped()
    v = torch.zeros(1, 77, 2, 40, dtype=torch.float16)
    sinks = torch.zeros(6)
    options, extras = Options(window=(9, -1), softcap=2.5), Extras(sinks=sinks)
    plan = plan_for(HOPPER, q, k, v, None, options=options, extras=extras)
    packed = values(plan.bind(q, k, v, None, extras=extras))
    expected = {"window_left": 9, "window_right": 100, "softcap": 2.5, "d_v": 40}
    assert {name: packed[name] for name in expected} == expected
    assert packed["sinks"] == sinks.data_ptr()
    assert packed["o_stride"] == (100 * 6 * 40, 6 * 40, 40)
    assert [each.description.dims[0] for each in plan.maps] == [64, 64, 40, 40]
    assert [each.description.box[0] for each in plan.maps] == [64] * 4


@pytest.mark.usefixtures("no_compile")
def test_a_packed_plan_has_maps_without_a_batch_and_the_addresses_of_the_lengths() -> None:
    q, k, v = (t[0] for t in grouped())
    starts = (torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32))
    used = torch.zeros(3, dtype=torch.int32)
    options = Options(return_lse=True, max_seqlen_q=50, max_seqlen_k=60)
    extras = Extras(None, *starts, used)
    plan = plan_for(HOPPER, q, k, v, None, options=options, extras=extras)
    packed = values(plan.bind(q, k, v, None, extras=extras))
    pointers = ("sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_k")
    assert [packed[name] for name in pointers] == [
        None,
        *(tensor.data_ptr() for tensor in (*starts, used)),
    ]
    expected = {"batch": 3, "seq_len_q": 50, "seq_len_k": 60}
    expected |= {"lse_batch_stride": 0, "lse_head_stride": 100}
    assert {name: packed[name] for name in expected} == expected
    assert packed["q_stride"][1:] == (6 * D_HEAD, D_HEAD)
    assert [each.description.dims for each in plan.maps[:2]] == [(64, 6, 100, 1), (64, 2, 77, 1)]
    assert (plan.counts_tiles, plan.geometry.grid) == (True, (EMULATED_SMS, 1, 1))


@pytest.mark.usefixtures("no_compile")
def test_extra_tensors_are_part_of_what_a_plan_is_for() -> None:
    q, k, v = grouped()
    bare = plan_for(HOPPER, q, k, v, None)
    used = torch.zeros(1, dtype=torch.int32)
    plans = [
        plan_for(HOPPER, q, k, v, None, extras=extras)
        for extras in (Extras(seqused_k=used), Extras(sinks=torch.zeros(6)))
    ]
    assert len({id(plan) for plan in (bare, *plans)}) == 3
    assert plan_for(HOPPER, q, k, v, None, extras=Extras(seqused_k=used.clone())) is plans[0]
    assert [plan.given for plan in (bare, *plans)] == [(), ("seqused_k",), ("sinks",)]


@pytest.mark.usefixtures("no_compile")
def test_every_call_checks_the_gradient_of_the_sinks() -> None:
    q, k, v = grouped()
    extras = Extras(sinks=torch.zeros(6))
    plan = plan_for(HOPPER, q, k, v, None, extras=extras)
    with pytest.raises(UnsupportedError, match="requires grad"):
        plan.bind(q, k, v, None, extras=Extras(sinks=torch.zeros(6).requires_grad_()))


@pytest.mark.usefixtures("no_compile")
def test_a_selected_config_is_part_of_the_plan() -> None:
    q, k, v = grouped()
    plan = plan_for(SELECT, q, k, v, None)
    assert plan.config == select_config(plan.problem, ARCHES["sm_90"])
    assert plan_for(SELECT, q, k, v, None) is plan


@pytest.mark.usefixtures("no_compile")
def test_keys_are_cut_on_hopper_only() -> None:
    q, k, v = grouped()
    options = Options(split_keys=64)
    hopper, other = (
        new_plan(SELECT, q[:, :1], k, v, None, ARCHES[name], options=options)
        for name in ("sm_90", "sm_80")
    )
    assert hopper.chunks is not None
    assert other.chunks is None
    assert isinstance(other.config, FlashForwardKernelConfig)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("options", "extras", "message"),
    [
        (Options(window=cast(Any, [3, 3])), Extras(), r"window is \[3, 3\]; pass a tuple"),
        (Options(), Extras(sinks=cast(Any, [0.0])), "sinks is a list"),
        (Options(max_seqlen_q=cast(Any, [3])), Extras(), "max_seqlen_q is given without"),
    ],
)
def test_what_cannot_be_a_key_is_explained(options: Options, extras: Extras, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        plan_for(HOPPER, *grouped(), None, options=options, extras=extras)

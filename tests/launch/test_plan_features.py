# SPDX-License-Identifier: Apache-2.0
"""Plans of features: what is packed of them, and what they add to a plan's key."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES
from flash_attention.call.call import EXTRAS, Call
from flash_attention.choose.choice import Rule
from flash_attention.choose.heuristic import select_config
from flash_attention.errors import UnsupportedError
from flash_attention.kernel_configs import FlashForwardKernelConfig, HopperForwardKernelConfig
from flash_attention.launch.device import EMULATED_SMS
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from tests.launch.calls import D_HEAD, DYNAMIC, HOPPER, grouped, values


@pytest.mark.usefixtures("no_compile")
def test_a_hopper_plan_packs_what_the_problem_says() -> None:
    call = Call(*grouped(), causal=True, softmax_scale=0.5, return_lse=True)
    plan = plan_for(call, HOPPER)
    packed = values(plan.bind(call))
    expected = {"batch": 1, "heads": 6, "heads_per_kv": 3, "seq_len_q": 100, "seq_len_k": 77}
    assert {name: packed[name] for name in expected} == expected
    assert packed["k_stride"] == (77 * 2 * D_HEAD, 2 * D_HEAD, D_HEAD)
    assert packed["softmax_scale"] == 0.5
    assert (plan.problem.causal, plan.choice.setting.arch) == (True, ARCHES["sm_90"])
    assert (packed["lse_batch_stride"], packed["lse_head_stride"]) == (600, 100)
    assert plan.recipe.steps[0].geometry.grid == (6, 1, 1)


@pytest.mark.usefixtures("no_compile")
def test_a_plan_of_a_window_a_softcap_and_other_columns_packs_them() -> None:
    q, k, _ = grouped()
    v = torch.zeros(1, 77, 2, 40, dtype=torch.float16)
    sinks = torch.zeros(6)
    call = Call(q, k, v, window=(9, -1), softcap=2.5, sinks=sinks)
    plan = plan_for(call, HOPPER)
    packed = values(plan.bind(call))
    expected = {"window_left": 9, "window_right": 100, "softcap": 2.5, "d_v": 40}
    assert {name: packed[name] for name in expected} == expected
    assert packed["sinks"] == sinks.data_ptr()
    assert packed["o_stride"] == (100 * 6 * 40, 6 * 40, 40)
    maps = plan.recipe.steps[0].maps.values()
    assert [each.dims[0] for each in maps] == [64, 64, 40, 40]
    assert [each.box[0] for each in maps] == [64] * 4


@pytest.mark.usefixtures("no_compile")
def test_a_packed_plan_has_maps_without_a_batch_and_the_addresses_of_the_lengths() -> None:
    q, k, v = (t[0] for t in grouped())
    starts = [torch.zeros(4, dtype=torch.int32) for _ in "qk"]
    used = torch.zeros(3, dtype=torch.int32)
    call = Call(
        *(q, k, v),
        cu_seqlens_q=starts[0],
        cu_seqlens_k=starts[1],
        seqused_k=used,
        max_seqlen_q=50,
        max_seqlen_k=60,
        return_lse=True,
    )
    plan = plan_for(call, DYNAMIC)
    packed = values(plan.bind(call))
    pointers = ("sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_k")
    assert [packed[name] for name in pointers] == [
        None,
        *(tensor.data_ptr() for tensor in (*starts, used)),
    ]
    expected = {"batch": 3, "seq_len_q": 50, "seq_len_k": 60}
    expected |= {"lse_batch_stride": 0, "lse_head_stride": 100}
    assert {name: packed[name] for name in expected} == expected
    assert packed["q_stride"][1:] == (6 * D_HEAD, D_HEAD)
    (step,) = plan.recipe.steps
    assert [step.maps[name].dims for name in "qk"] == [(64, 6, 100, 1), (64, 2, 77, 1)]
    assert (plan.recipe.counts_tiles, step.geometry.grid) == (True, (EMULATED_SMS, 1, 1))


@pytest.mark.usefixtures("no_compile")
def test_extra_tensors_are_part_of_what_a_plan_is_for() -> None:
    call = Call(*grouped())
    used, sinks = torch.zeros(1, dtype=torch.int32), torch.zeros(6)
    calls = (call, call._replace(seqused_k=used), call._replace(sinks=sinks))
    plans = [plan_for(each, DYNAMIC) for each in calls]
    assert len({id(plan) for plan in plans}) == 3
    assert plan_for(call._replace(seqused_k=used.clone()), DYNAMIC) is plans[1]
    for plan, each in zip(plans, calls, strict=True):
        arguments = plan.bind(each)
        given = {name: tensor.data_ptr() for name, tensor in each.extras().items()}
        assert {name: getattr(arguments, name) for name in EXTRAS} == dict.fromkeys(EXTRAS) | given


@pytest.mark.usefixtures("no_compile")
def test_every_call_checks_the_gradient_of_the_sinks() -> None:
    call = Call(*grouped(), sinks=torch.zeros(6))
    plan = plan_for(call, HOPPER)
    learned = call._replace(sinks=torch.zeros(6).requires_grad_())
    with pytest.raises(UnsupportedError, match="requires grad"):
        plan.bind(learned)
    with torch.no_grad():
        plan.bind(learned)


@pytest.mark.usefixtures("no_compile")
def test_a_chosen_config_is_part_of_the_plan() -> None:
    call = Call(*grouped())
    plan = plan_for(call)
    assert (plan.choice.setting.arch, plan.choice.rule) == (ARCHES["sm_90"], Rule.HEURISTIC)
    assert plan.config == select_config(plan.problem, ARCHES["sm_90"])
    assert plan_for(call) is plan
    assert plan_for(call, HOPPER).choice.rule is Rule.GIVEN


@pytest.mark.usefixtures("no_compile")
def test_keys_are_cut_on_hopper_only() -> None:
    q, k, v = grouped()
    call = Call(q[:, :1], k, v, split_keys=64)
    hopper, other = (Plan(call, arch=ARCHES[name]) for name in ("sm_90", "sm_80"))
    assert isinstance(hopper.config, HopperForwardKernelConfig)
    assert (hopper.choice.rule, hopper.recipe.num_splits) == (Rule.DECODE, 2 * 2)
    assert (len(hopper.recipe.steps), hopper.recipe.counters) == (1, hopper.recipe.tiles)
    assert isinstance(other.config, FlashForwardKernelConfig)
    assert (other.recipe.num_splits, len(other.recipe.steps)) == (0, 1)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"window": [3, 3]}, r"window is \[3, 3\]; pass a tuple"),
        ({"sinks": [0.0]}, "sinks is a list"),
        ({"max_seqlen_q": [3]}, "max_seqlen_q is given without"),
    ],
)
def test_what_cannot_be_a_key_is_explained(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        plan_for(Call(*grouped(), **asked), HOPPER)

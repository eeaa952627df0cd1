# SPDX-License-Identifier: Apache-2.0
"""plan_for: when a plan is reused, how many are kept, and what is refused before one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention import emulate, forward, forward_timed
from flash_attention.call.call import Call
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig, KernelConfig
from flash_attention.ladder import get_ladder
from flash_attention.launch import plans
from flash_attention.launch.plans import Plans, forget_plans, plan_for
from flash_attention.reference.judge import generate_qkv
from tests.devices import DEVICES
from tests.launch.calls import CONFIG, HOPPER, call_with, dense, grouped


@pytest.mark.parametrize("device", DEVICES)
def test_a_plan_is_made_once_per_shape_stride_and_config(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, device)
    call = Call(q, k, v)
    plan = plan_for(call, CONFIG)
    assert plan_for(Call(k, q, v.clone()), replace(CONFIG)) is plan
    assert plan_for(call._replace(out=torch.empty_like(q)), CONFIG) is not plan
    assert plan_for(call, replace(CONFIG, B_c=64)) is not plan
    assert plan_for(Call(q[:, :64], k[:, :64], v[:, :64]), CONFIG) is not plan
    assert plan_for(call._replace(softmax_scale=0.5), CONFIG) is not plan
    assert plan_for(call) is not plan
    assert plan_for(call) is plan_for(call)


@pytest.mark.usefixtures("no_compile")
def test_a_mask_and_a_wish_for_lse_make_another_plan() -> None:
    call = Call(*grouped())
    plan = plan_for(call, HOPPER)
    assert plan_for(Call(*grouped()), HOPPER) is plan
    asked: tuple[dict[str, Any], ...] = (
        {"causal": True},
        {"return_lse": True},
        {"window": (3, 3)},
    )
    for change in asked:
        assert plan_for(call._replace(**change), HOPPER) is not plan


@pytest.mark.usefixtures("no_compile")
def test_a_program_with_ever_new_shapes_starts_over_when_so_many_plans_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flash_attention.launch.plans.MAX_PLANS", 3)
    monkeypatch.setattr(plans, "_plans", Plans())
    calls = [Call(*grouped(seq_q=length)) for length in range(1, 5)]
    kept = [plan_for(call, CONFIG) for call in calls[:3]]
    assert [plan_for(call, CONFIG) for call in calls[:3]] == kept
    last = plan_for(calls[3], CONFIG)
    assert list(plans._plans._planned.values()) == [last]
    assert plan_for(calls[3], CONFIG) is last
    assert plan_for(calls[0], CONFIG) is not kept[0]


@pytest.mark.usefixtures("no_compile")
def test_what_is_forgotten_is_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_plans", Plans())
    call = Call(*grouped())
    plan = plan_for(call, CONFIG)
    forget_plans()
    assert plan_for(call, CONFIG) is not plan


@pytest.mark.usefixtures("no_compile")
def test_devices_that_are_not_the_same_or_not_supported_are_refused() -> None:
    q, k, v, o = dense()
    with pytest.raises(UnsupportedError, match=r"k is on meta; a CUDA tensor is needed"):
        plan_for(Call(q, k.to("meta"), v), CONFIG)
    with pytest.raises(UnsupportedError, match=r"q is on meta; a CUDA tensor is needed"):
        plan_for(call_with(*(t.to("meta") for t in (q, k, v, o))), CONFIG)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("position", "thing", "message"),
    [
        (0, np.zeros((1, 64, 1, 64), np.float16), "q is a ndarray"),
        (1, None, "k is a NoneType"),
        (2, torch.zeros(1, 64, 1, 64).to_sparse(), "v has layout torch.sparse_coo"),
        (3, [1, 2], "the output is a list"),
    ],
)
def test_arguments_that_are_no_tensors_are_refused(position: int, thing: Any, message: str) -> None:
    tensors: list[Any] = dense()
    tensors[position] = thing
    with pytest.raises(UnsupportedError, match=message):
        plan_for(call_with(*tensors), CONFIG)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("config", [16, {"d_head": 64}, [CONFIG], FlashForwardKernelConfig])
def test_a_config_of_another_type_is_refused(config: Any) -> None:
    with pytest.raises(KernelConfigError, match="pass a FlashForwardKernelConfig"):
        plan_for(call_with(*dense()), config)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("function", [forward, forward_timed, emulate])
def test_where_a_config_must_be_given_none_is_refused(function: Callable[..., object]) -> None:
    q, k, v, _ = dense()
    with pytest.raises(KernelConfigError, match="is a NoneType; pass a FlashForwardKernelConfig"):
        function(None, q, k, v)


@pytest.mark.usefixtures("no_compile")
def test_a_string_that_is_no_config_is_refused_with_the_form() -> None:
    with pytest.raises(KernelConfigError, match="'FP16' is not a kernel config; the form is"):
        plan_for(call_with(*dense()), "FP16")
    with pytest.raises(UnsupportedError, match="there is no rung 99; the ladder has rungs 1 to 29"):
        plan_for(call_with(*dense()), "rung:99")


@pytest.mark.usefixtures("no_compile")
def test_a_config_may_be_its_short_form_a_rung_or_an_object_like_it() -> None:
    call = call_with(*dense())
    plan = plan_for(call, CONFIG)
    by_form = plan_for(call, CONFIG.short_form())
    assert by_form.config == plan.config == CONFIG
    assert plan_for(call, CONFIG.short_form()) is by_form
    heads, d_head = call.q.shape[2:]
    for number in (1, 5, 26):
        rung = get_ladder(DType.from_string(str(call.q.dtype)), d_head, heads)[number - 1]
        assert plan_for(call, f"rung:{number}").config == rung.config


@pytest.mark.usefixtures("no_compile")
def test_an_object_with_the_thirteen_fields_is_read_at_every_call() -> None:
    call = call_with(*dense())
    own = {field.name: getattr(CONFIG, field.name) for field in fields(CONFIG)}
    like = SimpleNamespace(**own | {"dtype": "fp16"})
    assert plan_for(call, like) is plan_for(call, CONFIG)
    like.optimized_softmax = not CONFIG.optimized_softmax
    turned = replace(CONFIG, optimized_softmax=not CONFIG.optimized_softmax)
    assert plan_for(call, like).config == turned
    like.B_r = [64]
    with pytest.raises(KernelConfigError) as caught:
        plan_for(call, like)
    assert caught.value.rule == "B_r"
    del like.B_r
    with pytest.raises(KernelConfigError, match="is a SimpleNamespace without B_r; an object"):
        plan_for(call, like)


@pytest.mark.usefixtures("no_compile")
def test_a_rung_is_that_of_the_tensors() -> None:
    q, k, v = generate_qkv(1, 64, 4, 48, DType.BF16)
    config = plan_for(Call(q, k, v), "rung:7").config
    assert config == get_ladder(DType.BF16, 64, 4)[6].config
    wide = generate_qkv(1, 64, 4, 192, DType.BF16)
    with pytest.raises(KernelConfigError, match="there is no ladder for d_head 192 and 4 heads"):
        plan_for(Call(*wide), "rung:7")


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("device", DEVICES)
def test_bad_calls_compile_nothing(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, device)
    for config, message in (
        ("(FP16, 64, 64, 32, 4): eager+load_2_2_0_tiles", "eager_needs_async"),
        (replace(CONFIG, dtype=DType.BF16), "config is for torch.bfloat16"),
        ("(FP16, 64, 64, 48, 4): load_2_2_0_tiles", "B_c=48: use one of"),
        (replace(CONFIG, static_row_stride=256), "rows of q are 128 apart"),
    ):
        with pytest.raises((UnsupportedError, KernelConfigError), match=message):
            plan_for(Call(q, k, v), config)
    with pytest.raises(UnsupportedError, match="several of its elements share memory"):
        plan_for(Call(q, k, v, q[:, :1].clone().expand(-1, 128, -1, -1)), CONFIG)
    with pytest.raises(UnsupportedError, match=r"split_keys is .*HopperForwardKernelConfig"):
        plan_for(Call(q, k, v, split_keys=64), CONFIG)
    wide = q.new_empty(1, 128, 2, 72)
    with pytest.raises(UnsupportedError, match="config is for d_head up to 64, v has d_head 72"):
        plan_for(Call(q, k, wide), CONFIG)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("config", [CONFIG, HOPPER], ids=["first", "hopper"])
@pytest.mark.parametrize(
    ("scale", "message"),
    [(-1.0, "softmax_scale is -1.0"), ([1.0], "is a list"), (torch.ones(1), "is a Tensor")],
)
def test_a_bad_scale_is_refused(config: KernelConfig, scale: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        plan_for(call_with(*dense(), softmax_scale=scale), config)


def test_a_view_that_negates_has_a_plan_of_no_other() -> None:
    q = torch.zeros(1, 8, 2, 64, dtype=torch.float16)
    plan_for(Call(q, q, q), CONFIG)
    negated = torch._neg_view(q)
    for tensors in ((negated, q, q), (q, negated, q), (q, q, negated), (q, q, q, negated)):
        with pytest.raises(UnsupportedError, match="holds its values negated"):
            plan_for(Call(*tensors), CONFIG)

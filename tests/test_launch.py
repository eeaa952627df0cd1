# SPDX-License-Identifier: Apache-2.0
"""Launch plans: what is packed once, what is checked on every call, and when a plan is reused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.checks import TensorView
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.kernel_args import ForwardKernelArgs
from flash_attention.kernel_configs import DType, FlashForwardKernelConfig
from flash_attention.launch import CPU, LaunchPlan, new_plan, plan_for
from flash_attention.testing import generate_qkv

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
BATCH, SEQ, HEADS, D_HEAD = 2, 128, 3, 64


def packed_slots(count: int = 4) -> list[Tensor]:
    """Tensors of one (batch, seq, slot, heads, d_head) buffer."""
    buffer = torch.zeros(BATCH, SEQ, count, HEADS, D_HEAD, dtype=torch.float16)
    return list(buffer.unbind(2))


def dense(count: int = 4) -> list[Tensor]:
    return [torch.zeros(BATCH, SEQ, HEADS, D_HEAD, dtype=torch.float16) for _ in range(count)]


def plan_of(*tensors: Tensor) -> LaunchPlan:
    views = [TensorView.of(n, t) for n, t in zip("qkvo", tensors, strict=True)]
    return LaunchPlan(CONFIG, views, device_index=0)


def values(args: ForwardKernelArgs) -> dict[str, Any]:
    fields = {name: getattr(args, name) for name, *_ in args._fields_}
    strides = {n: (s.batch, s.seq, s.head) for n, s in fields.items() if n.endswith("_stride")}
    return fields | strides


def test_a_plan_packs_strides_lengths_scale_and_the_call_adds_addresses() -> None:
    q, k = packed_slots(2)
    v = torch.zeros(BATCH, HEADS, SEQ, D_HEAD, dtype=torch.float16).transpose(1, 2)
    (o,) = dense(1)
    plan = plan_of(q, k, v, o)
    packed = values(plan.bind(q, k, v, o))
    assert packed == {
        "q": q.data_ptr(),
        "k": k.data_ptr(),
        "v": v.data_ptr(),
        "o": o.data_ptr(),
        "q_stride": (SEQ * 2 * HEADS * D_HEAD, 2 * HEADS * D_HEAD, D_HEAD),
        "k_stride": (SEQ * 2 * HEADS * D_HEAD, 2 * HEADS * D_HEAD, D_HEAD),
        "v_stride": (HEADS * SEQ * D_HEAD, D_HEAD, SEQ * D_HEAD),
        "o_stride": (SEQ * HEADS * D_HEAD, HEADS * D_HEAD, D_HEAD),
        "seq_len_q": SEQ,
        "seq_len_k": SEQ,
        "softmax_scale": 0.125,
    }
    assert plan.geometry.grid == (2, HEADS, BATCH)


def test_calls_with_one_plan_do_not_share_their_arguments() -> None:
    first, second = dense(), dense()
    plan = plan_of(*first)
    a, b = plan.bind(*first), plan.bind(*second)
    assert [a.q, a.k, a.v, a.o] == [t.data_ptr() for t in first]
    assert [b.q, b.k, b.v, b.o] == [t.data_ptr() for t in second]


def test_an_output_to_be_allocated_has_no_address_yet() -> None:
    q, k, v, o = dense()
    assert not plan_of(q, k, v, o).bind(q, k, v, None).o


def test_every_call_checks_alignment() -> None:
    good = dense()
    plan = plan_of(*good)
    storage = torch.zeros(BATCH * SEQ * HEADS * D_HEAD + 8, dtype=torch.float16)
    odd = storage[4:-4].view(BATCH, SEQ, HEADS, D_HEAD)
    for i, name in enumerate("qkvo"):
        q, k, v, o = [odd if j == i else tensor for j, tensor in enumerate(good)]
        with pytest.raises(UnsupportedError, match=f"{name} starts at .* 8 bytes past"):
            plan.bind(q, k, v, o)


def test_every_call_checks_overlap() -> None:
    q, k, v, o = dense()
    plan = plan_of(q, k, v, o)
    plan.bind(q, q, q, o)
    for name, tensor in zip("qkv", (q, k, v), strict=True):
        with pytest.raises(UnsupportedError, match=f"o and {name} overlap"):
            plan.bind(q, k, v, tensor)


def test_slots_of_one_buffer_serve_as_inputs_and_output() -> None:
    slots = packed_slots(5)
    plan = plan_of(*slots[:4])
    for q, k, v, o in itertools.permutations(slots, 4):
        assert plan.bind(q, k, v, o).o == o.data_ptr()
    q, k, v, *_ = slots
    with pytest.raises(UnsupportedError, match="o and v overlap"):
        plan.bind(q, k, v, v)


def test_every_call_checks_gradients() -> None:
    good = dense()
    plan = plan_of(*good)
    for i in range(4):
        tensors = [t.detach().requires_grad_(j == i) for j, t in enumerate(good)]
        with pytest.raises(UnsupportedError, match=r"requires grad.*torch.no_grad\(\)"):
            plan.bind(*tensors)
        with torch.no_grad():
            plan.bind(*tensors)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("given_output", [False, True])
def test_cpu_tensors_get_a_plan_without_a_device(given_output: bool) -> None:
    q, k, v, o = dense()
    plan = plan_for(CONFIG, q, k, v, o if given_output else None)
    assert plan.device_index == CPU
    assert plan.geometry.grid == (SEQ // CONFIG.B_r, HEADS, BATCH)


@pytest.mark.usefixtures("no_compile")
def test_a_plan_for_an_architecture_obeys_its_limits() -> None:
    q, k, v, _ = (torch.zeros(1, 128, 1, 128, dtype=torch.float16) for _ in range(4))
    large = replace(CONFIG, d_head=128, B_r=128, B_c=128, n_warps=8)
    assert new_plan(large, q, k, v, None).geometry.smem_bytes == 384 * 128 * 2
    small = replace(ARCHES["sm_86"], max_smem_per_cta=64 * 1024)
    with pytest.raises(KernelConfigError, match="more than a CTA of sm_86 may have"):
        new_plan(large, q, k, v, None, small)


@pytest.mark.usefixtures("no_compile")
def test_devices_that_are_not_the_same_or_not_supported_are_refused() -> None:
    q, k, v, o = dense()
    with pytest.raises(UnsupportedError, match=r"k is on meta; a CUDA tensor is needed"):
        plan_for(CONFIG, q, k.to("meta"), v, None)
    with pytest.raises(UnsupportedError, match=r"q is on meta; a CUDA tensor is needed"):
        plan_for(CONFIG, *(t.to("meta") for t in (q, k, v, o)))


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("position", "thing", "message"),
    [
        (0, np.zeros((1, 64, 1, 64), np.float16), "q is a ndarray"),
        (1, None, "k is a NoneType"),
        (2, torch.zeros(1, 64, 1, 64).to_sparse(), "v has layout torch.sparse_coo"),
        (3, [1, 2], "o is a list"),
    ],
)
def test_arguments_that_are_no_tensors_are_refused(position: int, thing: Any, message: str) -> None:
    tensors: list[Any] = dense()
    tensors[position] = thing
    with pytest.raises(UnsupportedError, match=message):
        plan_for(CONFIG, *tensors)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("config", [None, "FP16", {"d_head": 64}, [CONFIG]])
def test_a_config_of_another_type_is_refused(config: Any) -> None:
    with pytest.raises(KernelConfigError, match="pass a FlashForwardKernelConfig"):
        plan_for(config, *dense())


@pytest.mark.usefixtures("no_compile")
def test_a_config_that_cannot_be_hashed_names_its_rule() -> None:
    broken: Any = [64]
    with pytest.raises(KernelConfigError) as caught:
        plan_for(replace(CONFIG, B_r=broken), *dense())
    assert caught.value.rule == "B_r"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_plan_is_made_once_per_shape_stride_and_config(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, device)
    plan = plan_for(CONFIG, q, k, v, None)
    assert plan_for(replace(CONFIG), k, q, v.clone(), None) is plan
    assert plan_for(CONFIG, q, k, v, torch.empty_like(q)) is not plan
    assert plan_for(replace(CONFIG, B_c=64), q, k, v, None) is not plan
    assert plan_for(CONFIG, q[:, :64], k[:, :64], v[:, :64], None) is not plan


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bad_calls_compile_nothing(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, device)
    for config, message in (
        (replace(CONFIG, B_r=128, n_warps=8, B_c=128, async_copy=False), "eager_needs_async"),
        (replace(CONFIG, dtype=DType.BF16), "config is for torch.bfloat16"),
        (replace(CONFIG, d_head=128), "config is for d_head 128"),
        (replace(CONFIG, static_row_stride=256), "rows of q are 128 apart"),
    ):
        with pytest.raises((UnsupportedError, KernelConfigError), match=message):
            plan_for(config, q, k, v, None)
    with pytest.raises(UnsupportedError, match="q has 96 rows"):
        plan_for(CONFIG, q[:, :96], k[:, :96], v[:, :96], None)
    with pytest.raises(UnsupportedError, match="several of its elements share memory"):
        plan_for(CONFIG, q, k, v, q[:, :1].clone().expand(-1, 128, -1, -1))

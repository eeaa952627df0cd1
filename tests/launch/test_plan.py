# SPDX-License-Identifier: Apache-2.0
"""Plans: what is packed once, what is checked on every call, and where results go."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.call.call import Call
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.kernel_configs import HopperForwardKernelConfig, TileOrder
from flash_attention.launch.device import CPU, EMULATED_SMS
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import plan_for
from tests.launch.calls import (
    BATCH,
    CONFIG,
    D_HEAD,
    DYNAMIC,
    HEADS,
    HOPPER,
    SEQ,
    UNIFIED,
    call_with,
    dense,
    grouped,
    packed_slots,
    values,
)


def plan_of(*tensors: Tensor) -> Plan:
    return Plan(call_with(*tensors), CONFIG, ARCHES["sm_80"])


def test_a_plan_packs_strides_lengths_scale_and_the_call_adds_addresses() -> None:
    q, k = packed_slots(2)
    v = torch.zeros(BATCH, HEADS, SEQ, D_HEAD, dtype=torch.float16).transpose(1, 2)
    (o,) = dense(1)
    plan = plan_of(q, k, v, o)
    packed = values(plan.bind(Call(q, k, v, o)))
    assert packed == {
        "q": q.data_ptr(),
        "k": k.data_ptr(),
        "v": v.data_ptr(),
        "o": o.data_ptr(),
        **dict.fromkeys(("lse", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_k")),
        **dict.fromkeys(("block_table", "o_partial", "lse_partial", "tile_counter")),
        **dict.fromkeys(("q_descale", "k_descale", "v_descale", "rng_state", "max_score")),
        "dropout_zeros": (0,) * 8,
        "dropout_scale": 1.0,
        **dict.fromkeys(("q_descale_stride", "k_descale_stride", "v_descale_stride"), (0, 0, 0)),
        "q_stride": (SEQ * 2 * HEADS * D_HEAD, 2 * HEADS * D_HEAD, D_HEAD),
        "k_stride": (SEQ * 2 * HEADS * D_HEAD, 2 * HEADS * D_HEAD, D_HEAD),
        "v_stride": (HEADS * SEQ * D_HEAD, D_HEAD, SEQ * D_HEAD),
        "o_stride": (SEQ * HEADS * D_HEAD, HEADS * D_HEAD, D_HEAD),
        "block_table_stride": 0,
        "lse_batch_stride": HEADS * SEQ,
        "lse_head_stride": SEQ,
        "batch": BATCH,
        "heads": HEADS,
        "heads_per_kv": 1,
        "seq_len_q": SEQ,
        "seq_len_k": SEQ,
        "d_v": D_HEAD,
        "key_blocks": 0,
        "split_blocks": 0,
        "pages": 0,
        "window_left": 0,
        "window_right": 0,
        "softmax_scale": 0.125,
        "softcap": 0.0,
        "d_qk": D_HEAD,
    }
    (step,) = plan.recipe.steps
    assert step.geometry.grid == (2, HEADS, BATCH)


def test_calls_with_one_plan_do_not_share_their_arguments() -> None:
    first, second = dense(), dense()
    plan = plan_of(*first)
    a, b = plan.bind(call_with(*first)), plan.bind(call_with(*second))
    assert [a.q, a.k, a.v, a.o] == [t.data_ptr() for t in first]
    assert [b.q, b.k, b.v, b.o] == [t.data_ptr() for t in second]


def test_an_output_to_be_allocated_has_no_address_yet() -> None:
    q, k, v, o = dense()
    assert not plan_of(q, k, v, o).bind(Call(q, k, v)).o


def test_every_call_checks_alignment() -> None:
    good = dense()
    plan = plan_of(*good)
    storage = torch.zeros(BATCH * SEQ * HEADS * D_HEAD + 8, dtype=torch.float16)
    odd = storage[4:-4].view(BATCH, SEQ, HEADS, D_HEAD)
    for i, name in enumerate(("q", "k", "v", "the output")):
        tensors = [odd if j == i else tensor for j, tensor in enumerate(good)]
        with pytest.raises(UnsupportedError, match=f"{name} starts at .* 8 bytes past"):
            plan.bind(call_with(*tensors))


def test_every_call_checks_overlap() -> None:
    q, k, v, o = dense()
    plan = plan_of(q, k, v, o)
    plan.bind(Call(q, q, q, o))
    for name, tensor in zip("qkv", (q, k, v), strict=True):
        with pytest.raises(UnsupportedError, match=f"the output and {name} overlap"):
            plan.bind(Call(q, k, v, tensor))


def test_slots_of_one_buffer_serve_as_inputs_and_output() -> None:
    slots = packed_slots(5)
    plan = plan_of(*slots[:4])
    for q, k, v, o in itertools.permutations(slots, 4):
        assert plan.bind(Call(q, k, v, o)).o == o.data_ptr()
    q, k, v, *_ = slots
    with pytest.raises(UnsupportedError, match="the output and v overlap"):
        plan.bind(Call(q, k, v, v))


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(("d_head", "d_v"), [(64, 128), (128, 64)], ids=["longer", "shorter"])
def test_an_output_longer_or_shorter_than_q_is_held_against_its_own_length(
    name: str, d_head: int, d_v: int
) -> None:
    q, k, v, o = (torch.zeros(1, 64, 2, d, dtype=torch.float16) for d in (d_head, d_head, d_v, d_v))
    plan = Plan(Call(q, k, v, o), replace(CONFIG, d_head=128))
    storage = torch.zeros(64 * 2 * 512, dtype=torch.float16)
    like = {"q": q, "k": k, "v": v}[name]

    def bind(first_o: int, first_input: int) -> None:
        given = [
            storage[first : first + tensor.numel()].view(tensor.shape)
            for first, tensor in ((first_o, o), (first_input, like))
        ]
        fields: dict[str, Any] = {"out": given[0], name: given[1]}
        plan.bind(Call(q, k, v)._replace(**fields))

    bind(0, o.numel())
    bind(like.numel(), 0)
    for first_o, first_input in ((0, o.numel() - 8), (like.numel() - 8, 0)):
        with pytest.raises(UnsupportedError, match=f"the output and {name} overlap"):
            bind(first_o, first_input)


def test_every_call_checks_gradients() -> None:
    good = dense()
    plan = plan_of(*good)
    for i in range(4):
        tensors = [t.detach().requires_grad_(j == i) for j, t in enumerate(good)]
        with pytest.raises(UnsupportedError, match=r"requires grad.*call attention, which is"):
            plan.bind(call_with(*tensors))
        with torch.no_grad():
            plan.bind(call_with(*tensors))


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("given_output", [False, True])
def test_cpu_tensors_get_a_plan_without_a_device(given_output: bool) -> None:
    q, k, v, o = dense()
    plan = plan_for(Call(q, k, v, o if given_output else None), CONFIG)
    assert plan.device_index == CPU
    assert plan.recipe.steps[0].geometry.grid == (SEQ // CONFIG.B_r, HEADS, BATCH)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("config", "maps", "counts", "ctas"),
    [
        (HOPPER, 4, False, 6),
        (replace(HOPPER, tile_order=TileOrder.PERSISTENT), 4, False, EMULATED_SMS),
        (DYNAMIC, 4, True, EMULATED_SMS),
        (UNIFIED, 0, False, 6),
    ],
)
def test_a_hopper_plan_has_the_maps_and_ctas_of_its_kernel(
    config: HopperForwardKernelConfig, maps: int, counts: bool, ctas: int
) -> None:
    recipe = plan_for(Call(*grouped()), config).recipe
    (step,) = recipe.steps
    assert (step.geometry.grid, recipe.counts_tiles) == ((ctas, 1, 1), counts)
    assert list(step.maps) == list("qkvo")[:maps]
    descriptions = list(step.maps.values())
    assert [d.dims for d in descriptions[:2]] == [(64, 6, 100, 1), (64, 2, 77, 1)][:maps]
    assert [d.box[2] for d in descriptions] == [64, 128, 128, 16][:maps]


@pytest.mark.usefixtures("no_compile")
def test_an_idle_plan_needs_no_maps_and_no_counter() -> None:
    for tensors in (grouped(seq_k=0), grouped(seq_q=0), grouped(heads=0), grouped(0, 0, 0, 0)):
        plan = plan_for(call_with(*tensors), DYNAMIC)
        assert plan.idle
        assert plan.problem.idle
        assert plan.recipe.steps[0].maps == {}
        assert not plan.recipe.counts_tiles
        plan.bind(call_with(*tensors))


@pytest.mark.usefixtures("no_compile")
def test_a_plan_for_an_architecture_obeys_its_limits() -> None:
    q, k, v = (torch.zeros(1, 128, 1, 128, dtype=torch.float16) for _ in "qkv")
    large = replace(CONFIG, d_head=128, B_r=128, B_c=128, n_warps=8)
    assert Plan(Call(q, k, v), large).recipe.steps[0].geometry.smem_bytes == 384 * 128 * 2
    small = replace(ARCHES["sm_86"], max_smem_per_cta=64 * 1024)
    with pytest.raises(KernelConfigError, match="more than a CTA of sm_86 may have"):
        Plan(Call(q, k, v), large, small)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Launcher]:
    """The launchers that were asked to load, which does nothing."""
    asked: list[Launcher] = []

    def load(launcher: Launcher) -> None:
        asked.append(launcher)
        launcher.loaded = True

    monkeypatch.setattr(Launcher, "load", load)
    return asked


@pytest.mark.usefixtures("loads")
def test_a_call_is_prepared_with_room_for_its_results() -> None:
    q, k, _ = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in grouped())
    for d_v, strides in ((D_HEAD, q.stride()), (40, (100 * 6 * 40, 6 * 40, 40, 1))):
        call = Call(q, k, torch.zeros(1, 77, 2, d_v, dtype=torch.float16), return_lse=True)
        plan = Plan(call, HOPPER)
        arguments, (out, lse) = plan.prepare(call)
        assert (tuple(out.shape), out.stride()) == ((1, 100, 6, d_v), strides)
        assert plan.views[3].strides == out.stride()
        assert (lse.dtype, tuple(lse.shape)) == (torch.float32, (1, 6, 100))
        assert (arguments.o, arguments.lse) == (out.data_ptr(), lse.data_ptr())
    assert isinstance(Plan(call._replace(return_lse=False), HOPPER).prepare(call)[1], Tensor)


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def other_default(request: pytest.FixtureRequest) -> Iterator[None]:
    """Another dtype of tensors that are made without one."""
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("loads", "other_default")
def test_the_lse_is_float32_whatever_the_default_is() -> None:
    call = Call(*grouped(), return_lse=True)
    _, (out, lse) = Plan(call, HOPPER).prepare(call)
    assert (out.dtype, lse.dtype) == (torch.float16, torch.float32)


def test_kernels_are_loaded_by_the_first_call(loads: list[Launcher]) -> None:
    call = Call(*grouped())
    plan = Plan(call, HOPPER)
    assert loads == []
    for _ in range(3):
        plan.prepare(call)
    assert loads == [plan.launcher]


@pytest.mark.usefixtures("loads")
def test_a_given_output_counts_as_changed_when_it_is_claimed() -> None:
    q, k, v, o = dense()
    before = o._version
    arguments, out = plan_of(q, k, v, o).prepare(Call(q, k, v, o))
    assert out is o
    assert (arguments.o, o._version) == (o.data_ptr(), before + 1)
    with torch.inference_mode():
        kept = torch.zeros_like(q)
    assert plan_of(q, k, v, kept).prepare(Call(q, k, v, kept))[1] is kept


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("sinks", [None, torch.arange(6.0)])
def test_without_a_key_zeros_are_stored_and_nothing_is_loaded(
    sinks: Tensor | None, loads: list[Launcher]
) -> None:
    q, k, v = grouped(seq_k=0)
    o = torch.ones_like(q)
    call = Call(q, k, v, o, sinks, return_lse=True)
    result = Plan(call, HOPPER).run(call)
    assert isinstance(result, tuple)
    assert result[0] is o
    assert not o.any()
    expected = torch.full((6,), -torch.inf) if sinks is None else sinks
    assert torch.equal(result[1], expected[:, None].expand(1, 6, 100))
    assert loads == []

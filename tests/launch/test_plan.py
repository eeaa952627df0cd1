# SPDX-License-Identifier: Apache-2.0
"""Launch plans: what is packed once, what is checked on every call, and when a plan is reused."""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.call.call import Options
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.families.forward_args import ForwardKernelArgs, Strides
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    TileOrder,
)
from flash_attention.launch import driver, tensor_map
from flash_attention.launch import plan as launch
from flash_attention.launch.plan import (
    CPU,
    EMULATED_SMS,
    LaunchPlan,
    current_stream,
    new_plan,
    plan_for,
    tile_counter,
)
from flash_attention.reference.judge import generate_qkv

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
HOPPER = HopperForwardKernelConfig(DType.FP16, 64, 2, 128, 2, tma=True, specialised=True)
DYNAMIC = replace(HOPPER, tile_order=TileOrder.DYNAMIC, group_mib=16)
BATCH, SEQ, HEADS, D_HEAD = 2, 128, 3, 64


def packed_slots(count: int = 4) -> list[Tensor]:
    """Tensors of one (batch, seq, slot, heads, d_head) buffer."""
    buffer = torch.zeros(BATCH, SEQ, count, HEADS, D_HEAD, dtype=torch.float16)
    return list(buffer.unbind(2))


def dense(count: int = 4) -> list[Tensor]:
    return [torch.zeros(BATCH, SEQ, HEADS, D_HEAD, dtype=torch.float16) for _ in range(count)]


def plan_of(*tensors: Tensor) -> LaunchPlan:
    views = [TensorView.of(n, t) for n, t in zip("qkvo", tensors, strict=True)]
    problem = Problem.from_tensors(*tensors[:3])
    return LaunchPlan(CONFIG, problem, views, CPU, ARCHES["sm_80"])


def values(args: ForwardKernelArgs) -> dict[str, Any]:
    fields = {name: getattr(args, name) for name, *_ in args._fields_}
    strides = {n: (s.batch, s.seq, s.head) for n, s in fields.items() if isinstance(s, Strides)}
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
        **dict.fromkeys(("lse", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_k")),
        **dict.fromkeys(("block_table", "o_parts", "lse_parts", "tile_counter")),
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
        "window_left": 0,
        "window_right": 0,
        "softmax_scale": 0.125,
        "softcap": 0.0,
        "d_qk": D_HEAD,
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


def grouped(
    seq_q: int = 100, seq_k: int = 77, heads: int = 6, heads_k: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one batch entry, k and v shorter and with fewer heads."""
    q = torch.zeros(1, seq_q, heads, D_HEAD, dtype=torch.float16)
    k = torch.zeros(1, seq_k, heads_k, D_HEAD, dtype=torch.float16)
    return q, k, k.clone()


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize(
    ("config", "maps", "counts", "ctas"),
    [
        (HOPPER, 4, False, 6),
        (replace(HOPPER, tile_order=TileOrder.PERSISTENT), 4, False, EMULATED_SMS),
        (DYNAMIC, 4, True, EMULATED_SMS),
        (replace(HOPPER, stages=1, tma=False, specialised=False), 0, False, 6),
    ],
)
def test_a_hopper_plan_has_the_maps_and_ctas_of_its_kernel(
    config: HopperForwardKernelConfig, maps: int, counts: bool, ctas: int
) -> None:
    plan = plan_for(config, *grouped(), None)
    assert (plan.geometry.grid, plan.counts_tiles) == ((ctas, 1, 1), counts)
    descriptions = [each.description for each in plan.maps]
    assert len(descriptions) == maps
    assert [d.dims for d in descriptions[:2]] == [(64, 6, 100, 1), (64, 2, 77, 1)][:maps]
    assert [d.box[2] for d in descriptions] == [64, 128, 128, 16][:maps]


@pytest.mark.usefixtures("no_compile")
def test_an_idle_plan_needs_no_maps_and_no_counter() -> None:
    for tensors in (grouped(seq_k=0), grouped(seq_q=0), grouped(heads=0), grouped(0, 0, 0, 0)):
        plan = plan_for(DYNAMIC, *tensors, None)
        assert plan.problem.idle
        assert plan.maps == ()
        assert not plan.counts_tiles
        plan.bind(*tensors, None)


class Launches:
    """Stands in for the driver: notes what would be launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.parameters: list[tuple[object, ...]] = []
        self.counter = torch.zeros(2, dtype=torch.int32)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: CPU)
        monkeypatch.setattr(launch, "current_stream", lambda index: 0)
        monkeypatch.setattr(launch, "tile_counter", lambda index, stream: self.counter)
        monkeypatch.setattr(LaunchPlan, "load", lambda plan: None)
        monkeypatch.setattr(driver, "launch_kernel", self.launch)
        monkeypatch.setattr(tensor_map, "encode", lambda seen, address: (seen.box, address))

    def launch(
        self,
        function: None,
        shape: tuple[int, ...],
        parameters: tuple[object, ...],
        stream: int,
        index: int,
    ) -> None:
        self.shapes.append(shape)
        self.parameters.append(parameters)


def test_a_launch_passes_four_maps_and_then_the_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Launches(monkeypatch)
    q, k, v = grouped()
    o = torch.zeros_like(q)
    plan = new_plan(DYNAMIC, q, k, v, o)
    for _ in range(2):
        args = plan.bind(q, k, v, o)
        plan.launch(args)
        *maps, last = seen.parameters[-1]
        rows = (64, 128, 128, 16)
        assert maps == [
            ((64, 1, n, 1), t.data_ptr()) for n, t in zip(rows, (q, k, v, o), strict=True)
        ]
        assert last is args
        assert args.tile_counter == seen.counter.data_ptr()
    assert all(map(operator.is_, seen.parameters[0][:4], seen.parameters[1]))
    assert seen.shapes == [(EMULATED_SMS, 1, 1, 384, 1, 1, DYNAMIC.smem_bytes())] * 2


def test_a_kernel_without_tma_gets_its_arguments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Launches(monkeypatch)
    q, k, v, o = dense()
    for config in (CONFIG, replace(HOPPER, stages=1, tma=False, specialised=False)):
        plan = new_plan(config, q, k, v, o)
        args = plan.bind(q, k, v, o)
        plan.launch(args)
        assert seen.parameters[-1] == (args,)
        assert args.tile_counter is None


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
    assert plan_for(CONFIG, q, k, v, None, options=Options(softmax_scale=0.5)) is not plan


@pytest.mark.usefixtures("no_compile")
def test_a_mask_and_a_wish_for_lse_make_another_plan() -> None:
    q, k, v = grouped()
    plan = plan_for(HOPPER, q, k, v, None)
    assert plan_for(HOPPER, q, k, v, None, options=Options()) is plan
    for asked in (Options(causal=True), Options(return_lse=True), Options(window=(3, 3))):
        assert plan_for(HOPPER, q, k, v, None, options=asked) is not plan


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bad_calls_compile_nothing(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, device)
    for config, message in (
        (replace(CONFIG, B_r=128, n_warps=8, B_c=128, async_copy=False), "eager_needs_async"),
        (replace(CONFIG, dtype=DType.BF16), "config is for torch.bfloat16"),
        (replace(CONFIG, B_c=48), "B_c=48: use one of"),
        (replace(CONFIG, static_row_stride=256), "rows of q are 128 apart"),
    ):
        with pytest.raises((UnsupportedError, KernelConfigError), match=message):
            plan_for(config, q, k, v, None)
    with pytest.raises(UnsupportedError, match="several of its elements share memory"):
        plan_for(CONFIG, q, k, v, q[:, :1].clone().expand(-1, 128, -1, -1))
    with pytest.raises(UnsupportedError, match=r"split_keys is .*HopperForwardKernelConfig"):
        plan_for(CONFIG, q, k, v, None, options=Options(split_keys=64))
    wide = q.new_empty(1, 128, 2, 72)
    with pytest.raises(UnsupportedError, match="config is for d_head up to 64, v has d_head 72"):
        plan_for(CONFIG, q, k, wide, None)


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("config", [CONFIG, HOPPER], ids=["first", "hopper"])
@pytest.mark.parametrize(
    ("scale", "message"),
    [(-1.0, "softmax_scale is -1.0"), ([1.0], "is a list"), (torch.ones(1), "is a Tensor")],
)
def test_a_bad_scale_is_refused(config: KernelConfig, scale: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        plan_for(config, *dense(), options=Options(softmax_scale=scale))


@pytest.mark.gpu
def test_kernels_of_a_stream_share_a_counter_and_those_of_a_graph_have_their_own() -> None:
    index = torch.cuda.current_device()

    def counter() -> Tensor:
        return tile_counter(index, current_stream(index))

    first = counter()
    assert first.tolist() == [0, 0]
    assert counter() is first
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = counter()
        assert other.data_ptr() != first.data_ptr()
        assert counter() is other
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pair = [counter(), counter()]
        for each in pair:
            each += 1
    assert len({t.data_ptr() for t in (first, other, *pair)}) == 4
    for _ in range(2):
        graph.replay()
        assert [t.tolist() for t in pair] == [[1, 1], [1, 1]]
    assert first.tolist() == [0, 0]

# SPDX-License-Identifier: Apache-2.0
"""forward and forward_timed: right on every rung, with any strides, on the caller's stream."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import flash_attention
from flash_attention import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
    TileOrder,
    UnsupportedError,
)
from flash_attention.kernel_configs import parse_kernel_name
from flash_attention.ladder import get_ladder
from flash_attention.reference.judge import check_lse, check_output, generate_qkv, generate_qkvo
from tests.devices import DEVICES, HOPPER_DEVICES

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
HOPPER = HopperForwardKernelConfig(
    DType.FP16,
    64,
    2,
    128,
    2,
    tma=True,
    specialised=True,
    overlap=True,
    tile_order=TileOrder.DYNAMIC,
    group_mib=16,
)
HEADS = 4
SLOW_CYCLES = 200_000_000  # a tenth of a second of GPU work, to be overtaken


def test_everything_public_is_there() -> None:
    assert all(hasattr(flash_attention, name) for name in flash_attention.__all__)
    assert not hasattr(flash_attention, "tuned")


def test_the_function_and_the_package_that_tune_do_not_hide_each_other() -> None:
    import flash_attention_workbench.tune.run

    assert flash_attention.tune is flash_attention_workbench.tune.run.tune


@pytest.mark.usefixtures("no_compile")
def test_an_emulated_kernel_has_no_time() -> None:
    q, k, v, o = generate_qkvo(1, 64, 2, 64, DType.FP16)
    with pytest.raises(UnsupportedError, match="emulated: there is no kernel time to tell"):
        flash_attention.forward_timed(CONFIG, q, k, v, o)
    assert bool(o.isnan().all())


def assert_right(out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> None:
    check = check_output(out, q, k, v)
    assert check.ok, str(check)


@pytest.mark.parametrize(
    ("device", "seq_len"),
    [("cpu", 64), ("cpu", 128), ("cpu", 512)]
    + [pytest.param("cuda", n, marks=pytest.mark.gpu) for n in (64, 128, 1024, 4096)],
)
def test_short_and_long_sequences(device: str, seq_len: int) -> None:
    q, k, v = generate_qkv(1, seq_len, 3, 64, DType.FP16, device)
    assert_right(flash_attention.forward(CONFIG, q, k, v), q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_large_scores_do_not_overflow(device: str) -> None:
    q, k, v = generate_qkv(1, 256, 2, 64, DType.FP16, device)
    q, k = 8 * q, 8 * k
    assert_right(flash_attention.forward(CONFIG, q, k, v), q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_an_output_like_q_is_allocated(device: str) -> None:
    q, k, v = generate_qkv(2, 128, 3, 64, DType.FP16, device)
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (q, heads_first):
        out = flash_attention.forward(CONFIG, given, k, v)
        assert out.stride() == given.stride()
        assert (out.shape, out.dtype, out.device) == (q.shape, q.dtype, q.device)
        assert_right(out, q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_strided_inputs_and_outputs(device: str) -> None:
    q, k, v = generate_qkv(2, 128, 3, 64, DType.FP16, device)
    expected = flash_attention.forward(CONFIG, q, k, v)
    packed = torch.full((2, 128, 4, 3, 64), torch.nan, dtype=torch.float16, device=device)
    for slot, tensor in enumerate((q, k, v)):
        packed[:, :, slot] = tensor
    slots = packed.unbind(2)
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    padded = [torch.nn.functional.pad(t, (0, 8))[..., :64] for t in (q, k, v)]
    for inputs in (slots[:3], heads_first, padded, (slots[0], heads_first[1], padded[2])):
        assert torch.equal(flash_attention.forward(CONFIG, *inputs), expected)
    assert flash_attention.forward(CONFIG, *slots) is slots[3]
    assert torch.equal(slots[3], expected)
    assert all(map(torch.equal, slots[:3], (q, k, v)))


@pytest.mark.parametrize("device", DEVICES)
def test_broadcast_inputs(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 3, 64, DType.FP16, device)
    shared = [t.expand(2, -1, -1, -1) for t in (q, k, v)]
    out = flash_attention.forward(CONFIG, *shared)
    assert torch.equal(out, flash_attention.forward(CONFIG, *(t.contiguous() for t in shared)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_store_stays_inside_the_output(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, device)
    room = torch.full((1, 256, 4, 128), 7.0, dtype=torch.float16, device=device)
    inside = room[:, 64:192, 1:3, 32:96]
    flash_attention.forward(CONFIG, q, k, v, inside)
    assert_right(inside, q, k, v)
    inside.fill_(7.0)
    assert bool((room == 7.0).all())


@pytest.mark.parametrize("device", DEVICES)
def test_the_scale_is_the_callers(device: str) -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, device)
    out = flash_attention.forward(CONFIG, q, k, v, softmax_scale=0.25)
    check = check_output(out, q, k, v, softmax_scale=0.25)
    assert check.ok, str(check)


both_families = pytest.mark.parametrize(
    "family",
    [
        pytest.param(CONFIG, id="first"),
        pytest.param(HOPPER, id="hopper", marks=pytest.mark.gpu("sm_90")),
    ],
)


@pytest.mark.gpu
@both_families
def test_the_launch_follows_the_current_stream(family: KernelConfig) -> None:
    q, k, v, o = generate_qkvo(1, 128, 2, 64, DType.FP16, "cuda")
    expected = flash_attention.forward(family, q, k, v)
    late = torch.zeros_like(q)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW_CYCLES)
        late.copy_(q)
        flash_attention.forward(family, late, k, v, o)
        waiting = not side.query()
    assert waiting, "forward waited for the GPU"
    side.synchronize()
    assert torch.equal(o, expected)


@pytest.mark.gpu
def test_forward_timed_returns_the_kernel_time_in_milliseconds() -> None:
    q, k, v = generate_qkv(4, 4096, 16, 64, DType.FP16, "cuda")
    expected = flash_attention.forward(CONFIG, q, k, v)
    out, _ = flash_attention.forward_timed(CONFIG, q, k, v)
    assert torch.equal(out, expected)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW_CYCLES)
        _, milliseconds = flash_attention.forward_timed(CONFIG, q, k, v)
    tflops = CONFIG.attn_flop(4, 16, 4096) / milliseconds / 1e9
    assert 10 < tflops < 3000


@pytest.mark.gpu
@both_families
def test_threads_may_share_a_config(family: KernelConfig) -> None:
    inputs = [generate_qkv(1, 128, 2, 64, DType.FP16, "cuda", seed=s) for s in range(4)]
    expected = [flash_attention.forward(family, *qkv) for qkv in inputs]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(200):
            if not torch.equal(flash_attention.forward(family, *inputs[i]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.gpu
@both_families
def test_a_captured_graph_replays_the_kernel(family: KernelConfig) -> None:
    q, k, v, o = generate_qkvo(1, 128, 2, 64, DType.FP16, "cuda")
    flash_attention.forward(family, q, k, v, o)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        flash_attention.forward(family, q, k, v, o)
    q.copy_(k)
    o.fill_(torch.nan)
    graph.replay()
    assert_right(o, q, k, v)


@pytest.mark.parametrize("device", DEVICES)
def test_a_refused_call_leaves_the_output_alone(device: str) -> None:
    q, k, v, o = generate_qkvo(1, 128, 2, 64, DType.FP16, device)
    config, wide = replace(CONFIG, dtype=DType.BF16), torch.cat((q, q), dim=-1)
    bad: list[tuple[KernelConfig, Tensor, Tensor, Tensor, str]] = [
        (config, q, k, v, r"config is for torch.bfloat16, the tensors are torch.float16"),
        (CONFIG, wide, wide, v, "for d_head up to 64, q and k have d_head 128"),
        (CONFIG, wide[..., 4:68], k, v, "q starts at .* 8 bytes past a multiple of 16"),
        (CONFIG, q.clone().requires_grad_(), k, v, "requires grad, .* call attention, which is"),
        (CONFIG, q, k, v.transpose(1, 3), "k and v must agree in all but the last"),
    ]
    for given, a, b, c, message in bad:
        with pytest.raises(UnsupportedError, match=message):
            flash_attention.forward(given, a, b, c, o)
    with pytest.raises(UnsupportedError, match="the output and k overlap in memory"):
        flash_attention.forward(CONFIG, q, k, v, k)
    if device == "cuda":
        torch.cuda.synchronize()
    assert bool(o.isnan().all())


@pytest.mark.parametrize("device", DEVICES)
def test_a_store_in_place_is_seen_by_autograd(device: str) -> None:
    q, k, v, o = generate_qkvo(1, 128, 2, 64, DType.FP16, device)
    weight = torch.ones_like(q).requires_grad_()
    product = weight * o
    flash_attention.forward(CONFIG, q, k, v, o)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("device", HOPPER_DEVICES)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(70, 0), (0, 70), (0, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_without_a_query_or_a_key_nothing_is_compiled(
    device: str, seq_q: int, seq_k: int, causal: bool
) -> None:
    q, k, v, o = generate_qkvo(2, seq_q, 4, 64, DType.FP16, device, seq_len_k=seq_k, n_heads_k=2)
    out, lse = flash_attention.forward(HOPPER, q, k, v, o, causal=causal, return_lse=True)
    assert out is o
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(lse, torch.full((2, 4, seq_q), -torch.inf, device=device))
    assert torch.equal(flash_attention.forward(HOPPER, q, k, v), torch.zeros_like(q))
    with torch.inference_mode():
        kept = torch.full_like(q, torch.nan)
    assert torch.equal(flash_attention.forward(HOPPER, q, k, v, kept), torch.zeros_like(q))


@pytest.mark.usefixtures("no_compile")
def test_no_heads_and_no_batch_are_an_empty_result() -> None:
    for shape in ((0, 8, 2, 64), (2, 8, 0, 64)):
        q, k, v = (torch.zeros(shape, dtype=torch.float16) for _ in range(3))
        assert flash_attention.forward(HOPPER, q, k, v).shape == shape


@pytest.mark.parametrize("device", HOPPER_DEVICES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("seq_q", "seq_k", "heads_k"), [(1, 1, 4), (100, 300, 2), (300, 100, 1), (257, 257, 4)]
)
def test_any_lengths_shared_heads_a_mask_and_the_log_sum_exp(
    device: str, seq_q: int, seq_k: int, heads_k: int, causal: bool
) -> None:
    q, k, v, o = generate_qkvo(
        1, seq_q, 4, 64, DType.FP16, device, seq_len_k=seq_k, n_heads_k=heads_k
    )
    out, lse = flash_attention.forward(HOPPER, q, k, v, o, causal=causal, return_lse=True)
    assert out is o
    checks = (check_output(o, q, k, v, causal=causal), check_lse(lse, q, k, causal=causal))
    assert all(check.ok for check in checks), str(checks)
    assert torch.equal(flash_attention.forward(HOPPER, q, k, v, causal=causal), o)


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_hopper_kernels_take_any_strides(device: str) -> None:
    q, k, v = generate_qkv(2, 130, 3, 64, DType.FP16, device)
    expected = flash_attention.forward(HOPPER, q, k, v)
    room = torch.full((2, 140, 5, 128), 7.0, dtype=torch.float16, device=device)
    inside = room[:, 5:135, 1:4, 32:96]
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(flash_attention.forward(HOPPER, *heads_first), expected)
    flash_attention.forward(HOPPER, q, heads_first[1], v, inside)
    assert torch.equal(inside, expected)
    inside.fill_(7.0)
    assert bool((room == 7.0).all())
    shared = [t[:, :, :1].expand(-1, -1, 3, -1) for t in (k, v)]
    repeated = [t.contiguous() for t in shared]
    assert torch.equal(
        flash_attention.forward(HOPPER, q, *shared), flash_attention.forward(HOPPER, q, *repeated)
    )


@pytest.mark.gpu("sm_90")
def test_streams_and_graphs_do_not_share_tile_counters() -> None:
    q, k, v = generate_qkv(2, 2048, 8, 64, DType.FP16, "cuda")
    expected = flash_attention.forward(HOPPER, q, k, v, causal=True)
    out = [torch.empty_like(q) for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for o in out[:2]:
            flash_attention.forward(HOPPER, q, k, v, o, causal=True)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    for _ in range(20):
        for o in out:
            o.fill_(torch.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            graph.replay()
        for stream, o in zip(streams[1:], out[2:], strict=True):
            with torch.cuda.stream(stream):
                flash_attention.forward(HOPPER, q, k, v, o, causal=True)
        torch.cuda.synchronize()
        assert all(torch.equal(o, expected) for o in out)


@pytest.mark.gpu("sm_90")
def test_a_timed_call_returns_the_log_sum_exp_too() -> None:
    q, k, v = generate_qkv(1, 512, 2, 64, DType.FP16, "cuda")
    out, lse, milliseconds = flash_attention.forward_timed(HOPPER, q, k, v, return_lse=True)
    assert_right(out, q, k, v)
    assert check_lse(lse, q, k).ok
    assert milliseconds > 0


@pytest.mark.gpu
def test_a_profile_tells_kernels_apart_by_their_config() -> None:
    q, k, v = generate_qkv(1, 128, 2, 64, DType.FP16, "cuda")
    configs = [CONFIG, get_ladder(DType.FP16, 64, 2)[4].config]
    for config in configs:
        flash_attention.forward(config, q, k, v)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for config in configs:
            flash_attention.forward(config, q, k, v, causal=True)
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages() if "flash_forward" in event.key]
    assert {parse_kernel_name(name) for name in names} == set(configs)
    assert all(name.endswith("_causal") for name in names)


@pytest.mark.gpu
def test_a_benchmark_returns_the_time_last() -> None:
    q, k, v, o = generate_qkvo(2, 512, 4, 64, DType.FP16, "cuda")
    out, milliseconds = flash_attention.forward("rung:16", q, k, v, o, benchmark=True)
    assert out is o
    assert_right(out, q, k, v)
    assert 0 < milliseconds < 10

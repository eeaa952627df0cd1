# SPDX-License-Identifier: Apache-2.0
"""`emulate`: the kernel's numbers, what is found in a broken one, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import flash_attention
from flash_attention.compile import ENTRY, CompiledKernel, compile_kernel
from flash_attention.compile.unit import Unit
from flash_attention.errors import KernelConfigError, LaunchError, UnsupportedError
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    TileOrder,
)
from flash_attention.launch import emulation
from flash_attention.launch.emulate import emulate
from flash_attention.reference.judge import check_output, generate_qkv, generate_qkvo
from tests.emulator.edits import Edit, plant

pytestmark = pytest.mark.slow  # left out of `make quick`

CONFIG = FlashForwardKernelConfig(DType.FP16, 64, 64, 32, 4, True, True, True, 0, 2, 2, False, True)
HOPPER = HopperForwardKernelConfig(
    DType.FP16,
    64,
    1,
    64,
    1,
    tma=True,
    specialised=True,
    tile_order=TileOrder.DYNAMIC,
    group_mib=1,
)
COPY_KERNEL = """
// Stores one of the inputs in O, a warp's rows at a time, and row number times scale in the lse.
#include <fa/forward_args.cuh>
#include <fa/ptx/async.cuh>
#include <fa/ptx/memory.cuh>

extern "C" __global__ void ENTRY(const __grid_constant__ fa::TensorMap q_map,
                                 const __grid_constant__ fa::TensorMap k_map,
                                 const __grid_constant__ fa::TensorMap v_map,
                                 const __grid_constant__ fa::TensorMap o_map,
                                 const __grid_constant__ fa::ForwardKernelArgs args) {
  extern __shared__ __align__(1024) char smem[];
  __shared__ fa::u64 barrier;
  if (threadIdx.x > 0) return;
  const fa::ptx::Mbarrier full = {fa::ptx::smem_address(&barrier)};
  const fa::u32 box = fa::ptx::smem_address(smem);
  fa::ptx::mbarrier_init(full, 1);
  fa::ptx::fence_mbarrier_init();
  const int blocks = (args.seq_len_q + 63) / 64, tiles = blocks * args.heads * args.batch;
  int parity = 0;
  for (int i = blockIdx.x; i < tiles; i = gridDim.x + atomicAdd(args.tile_counter, 1)) {
    const int row = i % blocks * 64, all = i / blocks;
    const int head = all % args.heads, batch = all / args.heads;
    fa::ptx::mbarrier_arrive_expect(full, 64 * 64 * 2);
    fa::ptx::tma_load_4d(box, COPIED_map, full, 0, head / COPIED_heads, row, batch);
    fa::ptx::mbarrier_wait(full, parity);
    parity ^= 1;
    for (int w = 0; w < 4; ++w)
      fa::ptx::tma_store_4d(o_map, box + w * 16 * 128, 0, head, row + 16 * w, batch);
    fa::ptx::tma_commit();
    fa::ptx::tma_wait();
    for (int r = row; args.lse && r < min(row + 64, args.seq_len_q); ++r)
      args.lse[(batch * args.heads + head) * args.seq_len_q + r] = args.softmax_scale * r;
  }
  if (atomicAdd(args.tile_counter + 1, 1) == gridDim.x - 1) {
    args.tile_counter[0] = 0;
    args.tile_counter[1] = 0;
  }
}
"""


def run_instead(compiled: CompiledKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the emulator run this kernel whatever the unit."""
    monkeypatch.setattr(emulation, "compiled_unit", lambda unit: compiled)


def test_output_findings_counters_and_seconds() -> None:
    q, k, v = generate_qkv(1, 128, 3, 64, DType.FP16)
    result = emulate(CONFIG, q, k, v)
    assert check_output(result.output, q, k, v).ok
    assert result.findings == ()
    assert result.counters.bytes_stored == q.nbytes
    assert 0 < result.seconds < 60


def test_without_checks_the_output_is_the_same() -> None:
    q, k, v = generate_qkv(1, 128, 1, 64, DType.FP16)
    checked, plain = (emulate(CONFIG, q, k, v, checks=checks) for checks in (True, False))
    assert torch.equal(checked.output, plain.output)


def test_a_given_output_is_filled_and_returned() -> None:
    q, k, v, o = generate_qkvo(1, 64, 1, 64, DType.FP16)
    assert emulate(CONFIG, q, k, v, o).output is o
    assert check_output(o, q, k, v).ok
    with torch.inference_mode():
        kept = torch.full_like(q, torch.nan)
    assert torch.equal(flash_attention.forward(CONFIG, q, k, v, kept), o)


def spread(tensor: Tensor) -> Tensor:
    """The same values with unused memory behind every row, head and batch entry."""
    batch, seq_len, heads, d_head = tensor.shape
    room = torch.full((batch + 1, heads + 1, seq_len + 3, d_head + 8), torch.nan).to(tensor.dtype)
    view = room[1:, :heads, 2 : seq_len + 2, :d_head].transpose(1, 2)
    view.copy_(tensor)
    return view


def test_gaps_between_rows_are_neither_read_nor_written() -> None:
    q, k, v, o = (spread(t) for t in generate_qkvo(2, 128, 2, 64, DType.FP16))
    result = emulate(CONFIG, q, k, v, o)
    assert result.findings == ()
    assert check_output(o, q, k, v).ok
    (room,) = (t for t in [o._base] if t is not None)
    assert int(room.isnan().logical_not().sum()) == o.numel()


def test_one_row_too_far_is_found_inside_a_tensor_with_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = "tensor.address(first + row)"
    edit = Edit("sm80/load.cuh", right, "tensor.address(first + row + 1)")
    plant([edit], tmp_path, monkeypatch)
    q, k, v = (spread(t) for t in generate_qkv(2, 64, 2, 64, DType.FP16))
    findings = emulate(CONFIG, q, k, v).findings
    assert {finding.kind for finding in findings} >= {"global-out-of-bounds"}
    assert {finding.cta for finding in findings if finding.kind == "global-out-of-bounds"} == {0}


def test_forward_raises_what_the_emulator_finds_and_keeps_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant([Edit("sm80/schedule/eager.cuh", "b.template wait<0>();")], tmp_path, monkeypatch)
    q, k, v, o = generate_qkvo(1, 64, 1, 64, DType.FP16)
    with pytest.raises(LaunchError, match=r"the emulator found \d+ errors in \(FP16") as caught:
        flash_attention.forward(CONFIG, q, k, v, o)
    assert "[race]" in str(caught.value)
    assert "async.cuh" in str(caught.value)
    assert bool(o.isnan().all())


def test_a_kernel_that_never_ends_is_a_launch_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = 'b.hold_q(); if (threadIdx.x < 32) asm volatile("bar.sync 5, 64;");'
    plant([Edit("sm80/schedule/eager.cuh", "b.hold_q();", forever)], tmp_path, monkeypatch)
    q, k, v = generate_qkv(1, 64, 1, 64, DType.FP16)
    with pytest.raises(LaunchError, match=r"\(FP16, 64.* does not end:\n"):
        emulate(CONFIG, q, k, v)


def copy_kernel(name: str) -> CompiledKernel:
    """A kernel with the parameters of the Hopper family that copies q, k or v to O."""
    heads = "1" if name == "q" else "args.heads_per_kv"
    source = COPY_KERNEL.replace("COPIED_map", f"{name}_map").replace("COPIED_heads", heads)
    return compile_kernel(source.replace("ENTRY", ENTRY), arch="sm_90a", name=f"copy_{name}")


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_kernel_gets_maps_of_the_tensors_a_counter_and_room_for_lse(
    name: str, gaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(copy_kernel(name), monkeypatch)
    q, k, v = generate_qkv(2, 150, 4, 64, DType.FP16, seq_len_k=100, n_heads_k=2)
    o = torch.full_like(q, torch.nan)
    if gaps:
        q, k, v, o = (spread(tensor) for tensor in (q, k, v, o))
    result = emulate(HOPPER, q, k, v, o, softmax_scale=0.25, return_lse=True)
    assert list(map(str, result.findings)) == []
    source = {"q": q, "k": k, "v": v}[name]
    expected = torch.zeros_like(q)
    expected[:, : source.shape[1]] = source.repeat_interleave(4 // source.shape[2], dim=2)
    assert result.output is o
    assert torch.equal(o, expected)
    assert result.lse is not None
    assert torch.equal(result.lse, (torch.arange(150) / 4).expand(2, 4, 150))
    assert result.lse.dtype == torch.float32
    assert emulate(HOPPER, q, k, v).lse is None


def test_a_tile_counter_that_is_not_left_zero_is_a_launch_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = copy_kernel("q").source.replace("args.tile_counter[0] = 0;", "")
    compiled = compile_kernel(source, arch="sm_90a", name="copy_q_and_forget")
    run_instead(compiled, monkeypatch)
    q, k, v = generate_qkv(1, 250, 2, 64, DType.FP16)
    with pytest.raises(LaunchError, match=r"hopper\(.* leaves \[8, 0\] in its tile counter"):
        emulate(HOPPER, q, k, v)
    assert torch.equal(emulate(HOPPER, q, k, v, checks=False).output, q)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(0, 64), (3, 0), (0, 0)])
def test_without_a_query_or_a_key_nothing_runs(
    seq_q: int, seq_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(copy_kernel("q"), monkeypatch)
    q, k, v, o = generate_qkvo(1, seq_q, 2, 64, DType.FP16, seq_len_k=seq_k)
    result = emulate(HOPPER, q, k, v, o, return_lse=True)
    assert result.output is o
    assert torch.equal(o, torch.zeros_like(q))
    assert result.lse is not None
    assert torch.equal(result.lse, torch.full((1, 2, seq_q), -torch.inf))
    assert (result.findings, result.counters.instructions.total()) == ((), 0)


def test_the_kernel_is_compiled_for_the_familys_architecture_unless_told_and_for_the_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy, real, asked = copy_kernel("q"), emulation.compiled_unit, list[Unit]()

    def compiled_unit(unit: Unit) -> CompiledKernel:
        asked.append(unit)
        return copy if unit.target == "sm_90a" else real(unit)

    monkeypatch.setattr(emulation, "compiled_unit", compiled_unit)
    q, k, v = generate_qkv(1, 64, 1, 64, DType.FP16)
    emulate(HOPPER, q, k, v)
    emulate(HOPPER, q, k, v, causal=True, arch="sm_90")
    flash_attention.forward(HOPPER, q, k, v, causal=True)
    emulate(CONFIG, q, k, v)
    emulate(CONFIG, q, k, v, arch="sm_86")
    assert [(unit.target, unit.name) for unit in asked] == [
        ("sm_90a", HOPPER.kernel_name()),
        ("sm_90a", HOPPER.kernel_name() + "_causal"),
        ("sm_90a", HOPPER.kernel_name() + "_causal"),
        ("sm_80", CONFIG.kernel_name()),
        ("sm_86", CONFIG.kernel_name()),
    ]


@pytest.mark.usefixtures("no_compile")
def test_bad_settings_and_devices_are_refused() -> None:
    q, k, v = generate_qkv(1, 64, 1, 64, DType.FP16)
    with pytest.raises(UnsupportedError, match="unknown schedule 'chaos'; choose from lockstep"):
        emulate(CONFIG, q, k, v, schedule="chaos")
    with pytest.raises(UnsupportedError, match="unknown architecture 'sm_1'"):
        emulate(CONFIG, q, k, v, arch="sm_1")
    with pytest.raises(UnsupportedError, match="is on meta"):
        emulate(CONFIG, q.to("meta"), k.to("meta"), v.to("meta"))
    with pytest.raises(KernelConfigError, match="eager_needs_async"):
        emulate(replace(CONFIG, async_copy=False), q, k, v)
    with pytest.raises(UnsupportedError, match="the output and k overlap"):
        emulate(CONFIG, q, k, v, k)
    with pytest.raises(UnsupportedError, match="split_keys is given, and FlashForwardKernelConfig"):
        emulate(CONFIG, q, k, v, split_keys=64)
    with pytest.raises(KernelConfigError, match="sm_90"):
        emulate(HOPPER, q, k, v, arch="sm_80")


@pytest.mark.gpu
def test_gpu_tensors_are_refused() -> None:
    q, k, v = generate_qkv(1, 64, 1, 64, DType.FP16, "cuda")
    with pytest.raises(UnsupportedError, match=r"q is on cuda:0; the emulator takes CPU tensors"):
        emulate(CONFIG, q, k, v)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(DType))
def test_the_gpu_agrees_but_for_single_roundings(dtype: DType) -> None:
    config = replace(CONFIG, dtype=dtype)
    q, k, v = generate_qkv(2, 256, 2, 64, dtype)
    emulated = emulate(config, q, k, v).output
    launched = flash_attention.forward(config, q.cuda(), k.cuda(), v.cuda()).cpu()
    assert float((emulated == launched).float().mean()) > 0.95
    step = torch.finfo(emulated.dtype).eps
    assert torch.allclose(emulated, launched, rtol=2 * step, atol=step / 4)

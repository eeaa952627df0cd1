# SPDX-License-Identifier: Apache-2.0
"""A family whose CTAs work in clusters: nothing outside of its own file knows of it.

It registers itself, says in its own words what it does not take, is chosen and planned, and runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from flash_attention import (
    DType,
    KernelConfig,
    UnsupportedError,
    attention,
    emulate,
    explain,
    forward,
)
from flash_attention.arch import ARCHES, Arch
from flash_attention.call.call import Call
from flash_attention.call.features import PLAIN, Features
from flash_attention.call.problem import Problem
from flash_attention.choose.choice import Rule
from flash_attention.compile.unit import Unit
from flash_attention.families.family import Family
from flash_attention.families.fields import kernel_config
from flash_attention.families.forward_args import forward_args
from flash_attention.families.recipe import Geometry, Recipe, Setting, Step
from flash_attention.families.registry import FAMILIES, register
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import check_output, generate_qkv
from tests.devices import DEVICES

COLUMNS = 64  # of a row, two for each lane
MEETING = "meet();  // both have written their share\n"


@kernel_config
class PairConfig(KernelConfig):
    """The two CTAs of a cluster share the keys of a row, and the first reads what the second has
    from its shared memory."""

    dtype: DType = DType.BF16
    d_head: int = 64
    oldest_arch, prefix = ARCHES["sm_90"], "pair"
    B_r, B_c, num_threads, computing_warps = 1, 1, 32, 1


SOURCE = """#include <fa/forward_args.cuh>
#include <fa/ptx/math.cuh>
__device__ void meet() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
__device__ float of_other(float* mine) {
  fa::u32 at = static_cast<fa::u32>(__cvta_generic_to_shared(mine));
  float x;
  asm("mapa.shared::cluster.u32 %0, %0, 1;" : "+r"(at));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}
using Args = fa::ForwardKernelArgs;
extern "C" __global__ void flash_forward_kernel(const __grid_constant__ Args args) {
  __shared__ float share[4][32];
  const int rank = blockIdx.x % 2, lane = threadIdx.x;
  const auto at = [&](fa::Strides stride, int row) {  // in pairs of columns
    return (blockIdx.z * stride.batch + row * stride.seq + blockIdx.y * stride.head) / 2 + lane;
  };
  const auto low = [](fa::u32 pair) { return __uint_as_float(pair << 16); };
  const auto high = [](fa::u32 pair) { return __uint_as_float(pair & 0xffff0000); };
  const fa::u32 q = static_cast<const fa::u32*>(args.q)[at(args.q_stride, blockIdx.x / 2)];
  float max = -1e30f, sum = 0, x = 0, y = 0;
  for (int key = rank; key < args.seq_len_k; key += 2) {
    const fa::u32 k = static_cast<const fa::u32*>(args.k)[at(args.k_stride, key)];
    const fa::u32 v = static_cast<const fa::u32*>(args.v)[at(args.v_stride, key)];
    float s = low(q) * low(k) + high(q) * high(k);
    for (int lanes = 16; lanes; lanes /= 2) s += __shfl_xor_sync(~0u, s, lanes);
    s *= args.softmax_scale * 1.4426950408889634f;
    const float top = fmaxf(max, s), shrink = fa::ptx::exp2(max - top), p = fa::ptx::exp2(s - top);
    max = top, sum = sum * shrink + p, x = x * shrink + p * low(v), y = y * shrink + p * high(v);
  }
  share[0][lane] = max, share[1][lane] = sum, share[2][lane] = x, share[3][lane] = y;
  meet();  // both have written their share
  if (rank == 0) {
    float other[4];
    for (int i = 0; i < 4; ++i) other[i] = of_other(&share[i][lane]);
    const float top = fmaxf(max, other[0]);
    const float mine = fa::ptx::exp2(max - top), its = fa::ptx::exp2(other[0] - top);
    sum = sum * mine + other[1] * its, x = x * mine + other[2] * its, y = y * mine + other[3] * its;
    static_cast<fa::u32*>(args.o)[at(args.o_stride, blockIdx.x / 2)] =
        fa::ptx::pack_bf16x2(fa::ptx::divide(x, sum), fa::ptx::divide(y, sum));
  }
  meet();  // the share was read, and its memory may go
}
"""


class Pairs(Family[PairConfig]):
    name, config_type = "sm_90", PairConfig
    alignment = 4  # bytes of the words that a lane reads
    source = SOURCE

    def unit(self, config: PairConfig, features: Features, arch: Arch) -> Unit:
        return Unit("pair", arch.name, self.source)

    def resolve(self, config: PairConfig, features: Features) -> Features:
        if features != PLAIN:
            raise UnsupportedError("pair kernels compute full attention only; leave config out")
        return features

    def refusal(self, problem: Problem, views: Sequence[Any]) -> str | None:
        if (problem.d_head, problem.d_v) != (COLUMNS, COLUMNS):
            d_head = problem.d_v if problem.d_head == COLUMNS else problem.d_head
            return (
                f"pair kernels have two columns a lane, {COLUMNS}, and not {d_head}; leave it out"
            )
        return super().refusal(problem, views)

    def heuristic(self, problem: Problem, arch: Arch) -> PairConfig | str:
        if problem.features != PLAIN:
            return "pair kernels compute full attention only"
        return PairConfig() if arch.name == "sm_90" else "pair kernels need clusters"

    def recipe(
        self, config: PairConfig, problem: Problem, views: Sequence[Any], setting: Setting
    ) -> Recipe:
        features = self.features(config, problem)
        grid = (2 * problem.seq_q, problem.heads, problem.batch)
        geometry = Geometry(grid, block=32, cluster=(2, 1, 1))
        step = Step(self.unit(config, features, setting.arch), geometry)
        return Recipe(features, (step,), forward_args(problem, views), tiles=problem.num_tiles(1))


@pytest.fixture
def pairs() -> Iterator[Pairs]:
    """The family, registered for one test."""
    before = list(FAMILIES)
    family = Pairs()
    register(family)
    yield family
    FAMILIES[:] = before


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("pairs")
def test_its_kernel_is_right(device: str) -> None:
    q, k, v = generate_qkv(2, 9, 2, 64, torch.bfloat16, device, seq_len_k=33)
    check = check_output(forward(PairConfig(), q, k, v), q, k, v)
    assert check.ok, check


@pytest.mark.usefixtures("pairs")
def test_nothing_is_found_in_it(schedule: str) -> None:
    q, k, v = generate_qkv(1, 3, 2, 64, torch.bfloat16, seq_len_k=20)
    assert emulate(PairConfig(), q, k, v, schedule=schedule).findings == ()


def test_a_cluster_that_does_not_meet_is_found(
    pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "source", SOURCE.replace(MEETING, ""))
    q, k, v = generate_qkv(1, 3, 2, 64, torch.bfloat16, seq_len_k=20)
    kinds = {f.kind for f in emulate(PairConfig(), q, k, v, schedule="depth-first").findings}
    assert kinds & {"race", "uninitialised-shared"}


@pytest.mark.usefixtures("pairs")
def test_its_clusters_are_explained() -> None:
    q, k, v = generate_qkv(1, 8, 3, 64, torch.bfloat16)
    (launch,) = explain(q, k, v, config=PairConfig()).launches
    assert (launch.grid, launch.cluster) == ((16, 3, 1), (2, 1, 1))
    assert "grid (16, 3, 1) in clusters of (2, 1, 1), 32 threads" in launch.lines()[1]


def unaligned(rows: int) -> torch.Tensor:
    """A tensor whose rows start on 4 bytes, and not on 16."""
    wide = torch.randn(1, rows, 2, COLUMNS + 4).bfloat16()
    return wide[..., 2 : COLUMNS + 2]


@pytest.mark.usefixtures("pairs")
def test_it_says_in_its_own_words_what_no_kernel_of_it_takes() -> None:
    for d_head, d_v in ((40, 40), (COLUMNS, 40)):
        q, k, v = (torch.zeros(1, 8, 2, d, dtype=torch.bfloat16) for d in (d_head, d_head, d_v))
        with pytest.raises(UnsupportedError, match=r"^pair kernels have .* 64, and not 40; leave"):
            attention(q, k, v, config=PairConfig())


def test_it_is_planned_where_all_others_refuse(pairs: Pairs) -> None:
    q, k, v = map(unaligned, (8, 20, 20))
    call = Call(q, k, v)
    plan = Plan(call, arch=ARCHES["sm_90"])
    assert (plan.config, plan.choice.rule) == (PairConfig(), Rule.HEURISTIC)
    assert plan.recipe.steps[0].geometry.cluster == (2, 1, 1)
    masked = call._replace(causal=True)
    with pytest.raises(UnsupportedError, match=r"no kernel runs .*: pair kernels compute full"):
        Plan(masked, arch=ARCHES["sm_90"])
    FAMILIES.remove(pairs)
    with pytest.raises(UnsupportedError, match="the heads stride of q is 68 elements"):
        Plan(call, arch=ARCHES["sm_90"])


@pytest.mark.usefixtures("pairs")
def test_attention_runs_it_on_rows_that_only_it_reads() -> None:
    q, k, v = map(unaligned, (3, 20, 20))
    check = check_output(attention(q, k, v, config="pair(BF16, 64): plain"), q, k, v)
    assert check.ok, check
    odd = torch.randn(1, 20, 2, COLUMNS + 1).bfloat16()[..., 1:]
    with pytest.raises(UnsupportedError, match=r"of k is 65 elements; .* multiple of 2, .* 4 byt"):
        attention(q, odd, v, config=PairConfig())

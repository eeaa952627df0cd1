# SPDX-License-Identifier: Apache-2.0
"""Which problems MLA kernels run."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.call.call import Call
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView, shown
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import MAX_GRID_YZ, check_dtype
from flash_attention.families.sm90.forward.fit import check_tiles
from flash_attention.families.sm90.forward.splits import KvSplits
from flash_attention.families.sm90.mla.config import HopperMlaKernelConfig
from flash_attention.families.sm90.mla.features import ctas_of


def refusal(problem: Problem) -> str | None:
    """Say why MLA kernels do not run a problem with their head dimensions, or return None."""
    if problem.heads_k != 1:
        return f"MLA kernels read one head of k and v, and there are {problem.heads_k}"
    return None


def check_fits(
    config: HopperMlaKernelConfig,
    problem: Problem,
    views: Sequence[TensorView],
    kv_splits: KvSplits,
) -> None:
    """Raise UnsupportedError unless kernels of the config can run the problem."""
    check_dtype(config, problem)
    if (problem.d_head, problem.d_v) != (config.d_head, config.d_v):
        raise UnsupportedError(
            f"the kernel config is for d_head {config.d_head} and d_v {config.d_v}, the tensors"
            f" have {problem.d_head} and {problem.d_v}; pass a config of their d_v, or leave it out"
        )
    if why := refusal(problem):
        raise UnsupportedError(f"{why}; pass other tensors, or another config")
    _check_view(*views[1:3])
    if (ctas := ctas_of(problem)) > MAX_GRID_YZ:
        raise UnsupportedError(
            f"{problem.heads} heads of q need {ctas} CTAs that share a tile; a launch takes at most"
            f" {MAX_GRID_YZ}, pass a number of heads with a divisor up to 64"
        )
    check_tiles(config, problem, kv_splits.num_tiles(problem, ctas) * kv_splits.key_blocks)


def _check_view(k: TensorView, v: TensorView) -> None:
    """Check that v can be a view of k. Whether it starts where k does is checked in every call."""
    used = [dim for dim, size in enumerate(k.shape[:-1]) if size > 1]
    if any(k.strides[dim] != v.strides[dim] for dim in used):
        raise UnsupportedError(
            f"k has strides {shown(k.strides)}, v has strides {shown(v.strides)}; MLA kernels read"
            f" v as the first {v.shape[-1]} columns of k: pass v=k[..., :{v.shape[-1]}]"
        )


def elsewhere(call: Call) -> str | None:
    """Say that v of a call does not start where k does, or return None."""
    k, v = call.k.data_ptr(), call.v.data_ptr()
    if k == v:
        return None
    return (
        f"v starts at address {v:#x}, k at {k:#x}; MLA kernels read v as the first columns of k:"
        f" pass v=k[..., :{call.v.shape[-1]}]"
    )

# SPDX-License-Identifier: Apache-2.0
"""Rules that tie a call to the kernel config that was chosen for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flash_attention.call.features import CAUSAL, PLAIN, Features, MaskKind, SplitKind
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.kernel_configs import (
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)

MAX_GRID_YZ = 65535  # CUDA's limit on the second and third grid dimension
MAX_GRID_X = (1 << 31) - 1  # and on the first
MIN_PAGE_KEYS = 16
FIRST_FAMILY = "kernels of a FlashForwardKernelConfig"
OTHER_FAMILY = "pass a HopperForwardKernelConfig, whose kernels do; it needs sm_90 (H100, H200)"


def check_features_fit(config: KernelConfig, features: Features) -> None:
    """The first family takes keys as they lie, kernels without a producer know masks at most."""
    if isinstance(config, FlashForwardKernelConfig):
        missing = Features(
            heads_together=features.heads_together,
            splits=features.splits,
            page_keys=features.page_keys,
        )
        if missing != PLAIN:
            raise UnsupportedError(
                f"{_asked(missing)}, and {FIRST_FAMILY} take one head a tile, and keys that lie one"
                f" after the other, all of a row's in one go; {OTHER_FAMILY}"
            )
    elif not config.specialised and replace(features, sinks=False) not in (PLAIN, CAUSAL):
        raise UnsupportedError(
            f"{_asked(features)}, and Hopper kernels without a producer compute full and causal"
            " attention only; pass a config with specialised=True"
        )


def _asked(features: Features) -> str:
    words = {
        "causal=True": features.mask is MaskKind.CAUSAL,
        "a window": features.mask is MaskKind.WINDOW,
        "softcap": features.softcap,
        "a length of its own for every batch entry": features.per_batch,
        "a tile of several heads": features.heads_together > 1,
        "split_keys": features.splits is not SplitKind.WHOLE,
        "block_table": features.page_keys > 0,
    }
    (*before, last) = (word for word, on in words.items() if on)
    return f"{', '.join(before)} and {last} are asked for" if before else f"{last} is asked for"


def check_config_fits(
    config: KernelConfig,
    problem: Problem,
    views: Sequence[TensorView],
    chunks: Chunks | None = None,
) -> None:
    """The rules that tie a problem, and q, k, v and o with a batch dimension, to the kernel."""
    dtype = config.dtype.to_torch_dtype()
    if problem.dtype != dtype:
        raise UnsupportedError(
            f"the kernel config is for {dtype}, the tensors are {problem.dtype};"
            " pass a config of their dtype or convert them"
        )
    features = problem.features
    check_features_fit(config, features if chunks is None else chunks.features(features))
    if isinstance(config, FlashForwardKernelConfig):
        _check_first_family_fits(config, problem, views)
    else:
        _check_hopper_fits(config, problem, chunks)


def _check_d_head(config: KernelConfig, problem: Problem) -> None:
    for d_head in (problem.d_head, problem.d_v):
        if d_head != config.d_head:
            raise UnsupportedError(
                f"the kernel config is for d_head {config.d_head}, the tensors have d_head"
                f" {d_head}; pass a config of their d_head"
            )


def _check_columns(config: KernelConfig, problem: Problem) -> None:
    for name, d_head in (("q and k have", problem.d_head), ("v has", problem.d_v)):
        if d_head > config.d_head:
            raise UnsupportedError(
                f"the kernel config is for d_head up to {config.d_head}, {name} d_head {d_head};"
                " pass a config with at least their d_head"
            )


def _check_first_family_fits(
    config: FlashForwardKernelConfig, problem: Problem, views: Sequence[TensorView]
) -> None:
    _check_columns(config, problem)
    for dim, size in (("batch", problem.batch), ("heads", problem.heads)):
        if size > MAX_GRID_YZ:
            raise UnsupportedError(
                f"{dim} is {size}; a launch takes at most {MAX_GRID_YZ}, split the tensors along"
                f" {dim}"
            )
    row_stride = config.static_row_stride
    for view in views if row_stride else ():
        if view.strides[1] != row_stride:
            raise UnsupportedError(
                f"the kernel config has rows {row_stride} elements apart (static_row_stride), the"
                f" rows of {view.name} are {view.strides[1]} apart; pass tensors with that row"
                " stride, o included, or a config with static_row_stride = 0"
            )


def _check_hopper_fits(
    config: HopperForwardKernelConfig, problem: Problem, chunks: Chunks | None
) -> None:
    if not config.tma:
        _check_d_head(config, problem)
    _check_columns(config, problem)
    if problem.page_keys:
        _check_page_fits(config, problem.page_keys)
    if chunks is not None and problem.total_q is not None:
        raise UnsupportedError(
            "split_keys is given with cu_seqlens_q, and the keys of packed queries are not split;"
            " leave split_keys out, or pass q with a batch dimension"
        )
    tiles = (
        problem.num_tiles(config.B_r)
        if chunks is None
        else chunks.num_tiles(problem, config.consumers) * chunks.key_blocks
    )
    if tiles > MAX_GRID_X:
        raise UnsupportedError(
            f"{problem.batch} batch entries of {problem.seq_q} queries and {problem.heads} heads"
            f" are {tiles} tiles of {config.B_r} rows of one head; a launch takes at most"
            f" {MAX_GRID_X}, split the tensors along batch"
        )


def _check_page_fits(config: HopperForwardKernelConfig, page_keys: int) -> None:
    """A block of keys is some pages, or part of one."""
    if page_keys < MIN_PAGE_KEYS:
        raise UnsupportedError(
            f"k and v have pages of {page_keys} keys; allowed are {MIN_PAGE_KEYS} or more"
        )
    if page_keys % config.B_c and config.B_c % page_keys:
        raise UnsupportedError(
            f"k and v have pages of {page_keys} keys, the kernel visits them in blocks of B_c ="
            f" {config.B_c}; one must divide the other: use pages of 16, 32, 64 or a multiple of 64"
            " keys and leave config out, or pass a config of such a B_c"
        )

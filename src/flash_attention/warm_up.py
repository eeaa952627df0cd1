# SPDX-License-Identifier: Apache-2.0
"""warm_up: compile the kernels of a server's calls before its first request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from flash_attention.arch import MEASURED_ARCH, Arch, get_arch
from flash_attention.call.built_in import with_built_in_mask
from flash_attention.call.call import Call, call_of, with_keywords
from flash_attention.call.checks import check_call, check_meaning
from flash_attention.call.results import BLOCK_DIMS, DESCALED_KEYS
from flash_attention.choose.dense import CPU
from flash_attention.choose.rules import choose
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.padding import naming_padding, needs_padding, padded
from flash_attention.families.recipe import NO_DEVICE, Setting
from flash_attention.launch.device import current_arch, device_arch, device_sms
from flash_attention.launch.kernels import load_unit

# Kernels are chosen for ranges of lengths. A range of queries that grows by a quarter has one of
# these, and so has one of keys that grows by a factor of four.
QUERIES = tuple(sorted({(4 + part) << octave >> 2 for octave in range(15) for part in range(4)}))
KEYS = tuple(4**i for i in range(9))
BATCHES = (1, 16, 256)
MANY_PROMPTS = 64  # sequences without one that decodes
TYPICAL_SMS = 128  # of a GPU that is not here; the choice depends on the tiles for each
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k")


@with_keywords
def warm_up(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    out: Tensor | None = None,
    arch: str | None = None,
    **keywords: Any,
) -> tuple[str, ...]:
    """Compile the kernels of all calls that differ from a given one only in their lengths.

    A server calls this once for every kind of attention layer of its model, before its first
    request: calls with other numbers of sequences, queries and keys then compile nothing. Kernels
    for tensors on a GPU are also loaded onto it. Nothing is computed, and no tensor is read.

    - `q`, `k`, `v`, `out` and the keywords: as in a call of `attention`, with cu_seqlens_q,
      cu_seqlens_k or seqused_k. Meta tensors do, if they have the strides of the later ones.
    - `arch`: the architecture to compile for, such as "sm_90", if the tensors are not on a GPU. The
      default is that of the current GPU, or else sm_90.

    Returns the names of the kernels. Raises UnsupportedError for what `attention` refuses, and
    CompileError if a kernel cannot be compiled.
    """
    call = call_of("warm_up", q, k, v, out, keywords)
    units = kernels_for(call, arch)
    for unit in units:
        loaded = load_unit(unit)
        if q.is_cuda:
            with torch.cuda.device(q.device):
                _ = loaded.function
    return tuple(unit.name for unit in units)


def kernels_for(call: Call, arch: str | None = None) -> tuple[Unit, ...]:
    """Return the kernels of all calls that differ from this one only in their lengths. Calls of
    representative lengths are planned, and nothing is compiled."""
    call = with_built_in_mask(call)
    with naming_padding(call):
        units: dict[Unit, None] = {}
        setting = _setting(call, arch)
        for planned in _like(call):
            wide = padded(planned) if needs_padding(planned.q, planned.v) else planned
            problem, views = check_call(wide, CPU)
            choice = choose(problem, setting, views, split_keys=call.split_keys)
            units |= dict.fromkeys(step.unit for step in choice.recipe(problem, views).steps)
    return tuple(units)


def _setting(call: Call, arch: str | None) -> Setting:
    device, lse = call.q.device, bool(call.return_lse)
    if device.type != "cuda":
        target: Arch = current_arch(MEASURED_ARCH) if arch is None else get_arch(arch)
        return Setting(target, TYPICAL_SMS, lse, device=NO_DEVICE)
    if arch is not None:
        raise UnsupportedError(
            f"arch is given, and the tensors are on {device}, which has its own; leave arch out, or"
            ' pass meta tensors, q.to("meta")'
        )
    index = call.q.get_device()
    return Setting(device_arch(index), device_sms(index), lse, device=index)


def _like(call: Call) -> Iterator[Call]:
    """Yield calls without memory that differ from one only in their lengths."""
    if all(getattr(call, name) is None for name in LENGTHS):
        raise UnsupportedError(
            "no lengths are given, and the kernels of tensors without them depend on every size;"
            f" pass {', '.join(LENGTHS[:-1])} or {LENGTHS[-1]}, as a server does"
        )
    check_meaning(call)
    for batch, queries, keys in product(BATCHES, QUERIES, KEYS):
        yield _resized(call, batch, queries, keys)
    if call.cu_seqlens_q is not None:
        for queries, keys in product(QUERIES, KEYS):
            yield _resized(call, MANY_PROMPTS, queries, keys, others=queries)


def _resized(call: Call, batch: int, queries: int, keys: int, others: int = 1) -> Call:
    """Return a call of `batch` sequences, of which the first has the most queries and keys. If they
    are packed, each of the others has one key and `others` queries. It has the strides of the given
    call where it can."""
    q, k, v, out, *_ = call
    more: dict[str, Any] = {}
    if call.cu_seqlens_q is None:
        q, out = (_rows(t, batch, queries) for t in (q, out))
    else:
        q, out = (_rows(t, queries + (batch - 1) * others) for t in (q, out))
        more |= {"cu_seqlens_q": _numbers(batch + 1), "max_seqlen_q": queries}
    if call.cu_seqlens_k is not None:
        k, v = (_rows(t, keys + batch - 1) for t in (k, v))
        more |= {"cu_seqlens_k": _numbers(batch + 1), "max_seqlen_k": keys}
    elif call.block_table is not None:
        k, v = (_rows(t, *t.shape[:2]) for t in (k, v))
        more["block_table"] = _numbers(batch, -(-keys // k.shape[1]))
        if call.max_seqlen_k is not None:
            more["max_seqlen_k"] = keys
    else:
        k, v = (_rows(t, batch, t.shape[1]) for t in (k, v))
    if call.seqused_k is not None:
        more["seqused_k"] = _numbers(batch)
    for name, factor in call.descales().items():
        blocks = (-(-keys // DESCALED_KEYS),) if factor.ndim == len(BLOCK_DIMS) else ()
        of_heads = (1,) if factor.ndim == 1 else (batch, factor.shape[1], *blocks)
        more[name] = factor.new_empty(of_heads, device="meta")
    if call.sinks is not None:
        more["sinks"] = call.sinks.to("meta")
    return call._replace(q=q, k=k, v=v, out=out, **more)


def _rows(tensor: Any, *rows: int) -> Any:
    """Return a tensor without memory that has other rows of the same heads, and their strides."""
    if tensor is None:
        return None
    strides = list(tensor.stride())
    if len(rows) == 2 and rows != tuple(tensor.shape[:2]):
        strides[0] = rows[1] * strides[1]
    shape = (*rows, *tensor.shape[-2:])
    return torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")


def _numbers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device="meta")

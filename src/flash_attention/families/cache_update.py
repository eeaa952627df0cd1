# SPDX-License-Identifier: Apache-2.0
"""The kernel that stores new keys and values in a KV cache, and describes it for attention."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from flash_attention.call.cache_call import CacheCall, CachedKeys
from flash_attention.call.dtype import DType
from flash_attention.call.features import PLAIN
from flash_attention.compile.binding import Variant
from flash_attention.families.bindings import dtype_binding
from flash_attention.families.cache_args import ROW_STRIDED, STRIDED, CacheKernelArgs
from flash_attention.families.call_args import Strides
from flash_attention.families.fit import ALIGNMENT
from flash_attention.families.recipe import Geometry, Recipe, Step
from flash_attention.families.small_kernels import SmallKernel, small_unit

THREADS = 128
MAX_ROW_CTAS = 1 << 12  # CTAs for the rows of a sequence; each has several rows if there are more


def cache_tensors(call: CacheCall, keys: CachedKeys) -> dict[str, Tensor]:
    """Return the tensors that the kernel reads and writes, by argument."""
    rotary = call.rotary
    given = {
        "q": call.q if rotary else None,
        "rotated_q": keys.q if rotary else None,
        "cos": rotary and rotary.cos,
        "sin": rotary and rotary.sin,
        "rotary_seqlens": rotary and rotary.seqlens,
        "cu_seqlens_q": call.cu_seqlens_q,
        "cu_seqlens_k_new": call.cu_seqlens_k_new,
        "k": call.k,
        "v": call.v,
        "k_cache": call.k_cache,
        "v_cache": call.v_cache,
        "seqlens": call.lengths if isinstance(call.lengths, Tensor) else None,
        "table": call.table,
        "index": call.batch_index,
        "leftpad": call.leftpad,
        "used": keys.used,
        "starts": keys.starts,
        "own_table": keys.table,
    }
    return {name: tensor for name, tensor in given.items() if isinstance(tensor, Tensor)}


def has_whole_chunks(tensors: Mapping[str, Tensor]) -> bool:
    """Whether all rows of keys, values and queries are whole chunks at addresses of such."""
    for name in STRIDED:
        tensor = tensors.get(name)
        if tensor is not None and tensor.shape[-1]:
            *strides, _ = tensor.stride()
            step = ALIGNMENT // tensor.itemsize
            if tensor.data_ptr() % ALIGNMENT or tensor.shape[-1] % step:
                return False
            if any(s % step for s, n in zip(strides, tensor.shape, strict=False) if n > 1):
                return False
    return True


def cache_recipe(
    call: CacheCall, tensors: Mapping[str, Tensor], target: str, *, whole_chunks: bool
) -> Recipe:
    """Return how the kernel updates a cache. `whole_chunks` is what `has_whole_chunks` says."""
    rotary = call.rotary
    kind = "none" if rotary is None else "interleaved" if rotary.interleaved else "halves"
    columns = "vectors" if whole_chunks else "elements"
    packed = call.cu_seqlens_k_new is not None
    dtype = DType.from_string(str(call.k_cache.dtype))
    unit = small_unit(
        SmallKernel("cache_update", f"{dtype.name.lower()}_{columns}_{kind}" + "_packed" * packed),
        target,
        title=f"new {dtype.name} rows of a KV cache",
        header="fa/cache/update.cuh",
        function="fa::cache::update",
        threads=THREADS,
        bindings=(
            dtype_binding(dtype),
            Variant("Columns", "cache/columns", columns.capitalize()),
            Variant("Rotary", "cache/rotary", kind.capitalize()),
            Variant("NewRows", "cache/new_rows", "Packed" if packed else "Padded"),
        ),
        arguments=CacheKernelArgs,
    )
    rows = max(_likely_new_rows(call), _queries(call) if rotary else 0)
    if call.own_page_rows:
        rows = max(rows, -(-call.max_rows // call.own_page_rows // THREADS))
    which = 3 if rotary else 2 if call.new_rows else 1  # K, V, Q
    grid = (call.batch, min(max(rows, 1), MAX_ROW_CTAS), which)
    return Recipe(PLAIN, (Step(unit, Geometry(grid, THREADS)),), _arguments(call, tensors))


def _likely_new_rows(call: CacheCall) -> int:
    """The number of new rows of the longest sequence. The host does not know it if they are packed;
    a new key mostly comes with a query of its own."""
    if call.cu_seqlens_k_new is None:
        return call.new_rows
    return max(-(-call.new_rows // call.batch), min(call.new_rows, _queries(call)))


def _queries(call: CacheCall) -> int:
    """The number of queries of the longest sequence."""
    return call.q.shape[1] if call.cu_seqlens_q is None else int(call.max_seqlen_q or 0)


def _arguments(call: CacheCall, tensors: Mapping[str, Tensor]) -> CacheKernelArgs:
    entries, entry_rows, heads_k, d_qk = call.k_cache.shape
    arguments = CacheKernelArgs(
        heads=call.q.shape[-2],
        heads_k=heads_k,
        seq_len_q=_queries(call),
        d_qk=d_qk,
        d_v=call.v_cache.shape[-1],
        new_rows=call.new_rows,
        entries=entries,
        entry_rows=entry_rows,
        table_rows=0 if call.table is None else len(call.table),
        max_rows=call.max_rows,
        own_page_rows=call.own_page_rows,
        rotary_dim=call.rotary.dim if call.rotary else 0,
        rotary_rows=len(call.rotary.cos) if call.rotary else 0,
        one_position=int(call.rotary.one_position) if call.rotary else 0,
    )
    for name in STRIDED:
        if name in tensors:
            *strides, _ = tensors[name].stride()
            setattr(arguments, f"{name}_stride", Strides(*(0, *strides)[-3:]))
    for name in ROW_STRIDED:
        if name in tensors:
            setattr(arguments, f"{name}_stride", tensors[name].stride(0))
    return arguments

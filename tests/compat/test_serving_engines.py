# SPDX-License-Identifier: Apache-2.0
"""The functions of vLLM's and SGLang's forks of flash-attn, called as the engines call them,
against attention of every sequence by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.call.results import E4M3
from flash_attention.compat import sglang, vllm
from flash_attention.errors import UnsupportedError
from tests.devices import HOPPER

DEVICES = [
    ("cpu", torch.float32, 1e-5),
    pytest.param("cuda", torch.bfloat16, 2e-2, marks=HOPPER),
]
HEADS, HEADS_K, D, PAGE = 4, 2, 64, 16
ROWS, KEYS = [3, 1, 5], [20, 37, 5]
ENGINES = ["vllm", "sglang"]
CASES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"causal": True, "window_size": [6, 0]},
    "softcap": {"causal": True, "softcap": 2.0},
    "sinks": {"causal": True, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "no mask": {"causal": False},
    "one split": {"causal": True, "num_splits": 1},
    "splits": {"causal": True, "num_splits": 32},
}


def numbers(device: str, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


class Step:
    """Packed queries and pages of a cache of vLLM: (pages, heads, page, 2 d), of which K and V are
    strided views."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        self.q = draw(sum(ROWS), HEADS, D)
        cache = draw(8, HEADS_K, PAGE, 2 * D)
        self.k, self.v = cache.transpose(1, 2).split(D, dim=-1)
        self.table = torch.tensor([[4, 1, 0], [7, 2, 5], [3, 0, 0]]).int().to(device)
        self.starts = numbers(device, 0, 3, 4, 9)
        self.used = numbers(device, *KEYS)
        self.out = torch.full_like(self.q, math.nan)

    def wanted(self, **options: Any) -> tuple[Tensor, Tensor]:
        """The output and the log-sum-exp, sequence by sequence, in float64 on the CPU."""
        window = options.get("window_size", (None, None))
        keywords: Any = {"causal": options["causal"], "window": tuple(window)}
        keywords |= {"softcap": options.get("softcap", 0.0), "softmax_scale": 0.2}
        keywords["sinks"] = options.get("sinks")
        outs, lses = [], []
        for i, (rows, keys) in enumerate(zip(ROWS, KEYS, strict=True)):
            first = int(self.starts[i])
            pages = self.table[i].long()
            k, v = (t[pages].flatten(0, 1)[:keys].double().cpu() for t in (self.k, self.v))
            q = self.q[first : first + rows].double().cpu()
            out, lse = attention(q[None], k[None], v[None], return_lse=True, **keywords)
            outs.append(out[0])
            lses.append(lse[0])
        return torch.cat(outs), torch.cat(lses, 1)


def of_vllm(step: Step, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """As FlashAttentionImpl.forward calls it, with factors of 1 that 16-bit tensors do not need."""
    options = {"s_aux" if name == "sinks" else name: o for name, o in options.items()}
    one = torch.ones(1, device=step.q.device).expand(len(ROWS), HEADS_K)
    return vllm.flash_attn_varlen_func(  # type: ignore[return-value]
        q=step.q,
        k=step.k,
        v=step.v,
        out=step.out,
        cu_seqlens_q=step.starts,
        max_seqlen_q=max(ROWS),
        seqused_k=step.used,
        max_seqlen_k=max(KEYS),
        softmax_scale=0.2,
        alibi_slopes=None,
        block_table=step.table,
        return_softmax_lse=True,
        scheduler_metadata=vllm.get_scheduler_metadata(batch_size=3, cache_seqlens=step.used),
        fa_version=3,
        q_descale=one,
        k_descale=one,
        v_descale=one,
        mask_mod=None,
        aux_tensors=None,
        dynamic_causal=None,
        **options,
    )


def of_sglang(step: Step, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """As FlashAttentionBackend.forward_extend calls it: lengths of new keys, and no new keys."""
    out, lse, *rest = sglang.flash_attn_with_kvcache(
        q=step.q,
        k_cache=step.k,
        v_cache=step.v,
        page_table=step.table,
        cache_seqlens=step.used,
        cu_seqlens_q=step.starts,
        cu_seqlens_k_new=numbers(step.q.device.type, 0, 20, 57, 62),
        max_seqlen_q=max(ROWS),
        softmax_scale=0.2,
        k_descale=None,
        v_descale=None,
        return_softmax_lse=True,
        ver=3,
        out=step.out,
        **options,
    )
    assert rest == [None, None]
    return out, lse


CALLS: dict[str, Callable[[Step, dict[str, Any]], tuple[Tensor, Tensor]]] = {
    "vllm": of_vllm,
    "sglang": of_sglang,
}


def close(given: Tensor, wanted: Tensor, tolerance: float) -> None:
    error = float((given.double().cpu() - wanted).abs().max())
    assert error <= tolerance * (1 + float(wanted.abs().max()))


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_over_pages(
    engine: str, options: dict[str, Any], device: str, dtype: torch.dtype, tolerance: float
) -> None:
    step = Step(device, dtype)
    on_device = {n: o.to(device) if isinstance(o, Tensor) else o for n, o in options.items()}
    out, lse = CALLS[engine](step, on_device)
    assert out.data_ptr() == step.out.data_ptr()
    wanted, wanted_lse = step.wanted(**options)
    close(step.out, wanted, tolerance)
    close(lse, wanted_lse, tolerance)


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_over_packed_keys(engine: str) -> None:
    """Encoders, and prompts without a prefix."""
    step = Step("cpu", torch.float32)
    q, k = step.q, step.q[:, :HEADS_K].contiguous()
    starts: Any = {"cu_seqlens_q": step.starts, "cu_seqlens_k": step.starts}
    starts |= {"max_seqlen_q": 5, "max_seqlen_k": 5}
    wanted = attention(q, k, k, causal=True, **starts)
    module = {"vllm": vllm, "sglang": sglang}[engine]
    function: Any = module.flash_attn_varlen_func
    torch.testing.assert_close(function(q, k, k, causal=True, **starts), wanted)


def test_factors_that_are_left_out_are_1() -> None:
    """SGLang converts queries to the 8 bits of its cache, and passes factors of k and v at most."""
    step = Step("cpu", torch.float32)
    q, k, v = (t.to(E4M3) for t in (step.q, step.k, step.v))
    pages: Any = {"page_table": step.table, "cache_seqlens": step.used, "causal": True}
    pages |= {"cu_seqlens_q": step.starts, "max_seqlen_q": max(ROWS)}
    two = torch.full((len(ROWS), HEADS_K), 2.0)
    step.q, step.k, step.v = (t.float() for t in (q, k, v))
    cases: list[tuple[Any, float]] = [({}, 1.0), ({"k_descale": two, "v_descale": two}, 2.0)]
    for factors, times in cases:
        found: Any = sglang.flash_attn_with_kvcache(
            q, k, v, softmax_scale=0.2 / times, **factors, **pages
        )
        close(found, times * step.wanted(causal=True)[0], 2e-2)


def test_dense_queries_and_new_keys_of_sglang() -> None:
    step = Step("cpu", torch.float32)
    q = step.q[:6].view(3, 2, HEADS, D)
    options: Any = {"page_table": step.table, "cache_seqlens": step.used, "causal": True}
    keys: Any = {"block_table": step.table, "seqused_k": step.used}
    wanted, wanted_lse = attention(q, step.k, step.v, causal=True, return_lse=True, **keys)
    out, lse, *_ = sglang.flash_attn_with_kvcache(
        q, step.k, step.v, return_softmax_lse=True, **options
    )
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(lse, wanted_lse)
    new = torch.ones(3, 1, HEADS_K, D)
    k, v = step.k.contiguous(), step.v.contiguous()
    room = torch.empty_like(q)
    found: Any = sglang.flash_attn_with_kvcache(q, k, v, new, new, out=room, **options)
    assert found.data_ptr() == room.data_ptr()
    keys["seqused_k"] = step.used + 1
    torch.testing.assert_close(found, attention(q, k, v, causal=True, **keys))
    assert (k[1, 20 - PAGE] == 1).all()
    with pytest.raises(UnsupportedError, match="sinks are given with new keys"):
        sglang.flash_attn_with_kvcache(q, k, v, new, new, sinks=torch.ones(4), **options)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (vllm.flash_attn_varlen_func, {"mask_mod": len}, "mask_mod is given, and functions of"),
        (vllm.flash_attn_varlen_func, {"cp_world_size": 2}, "cp_world_size is 2"),
        (vllm.flash_attn_varlen_func, {"dropout_p": 0.1}, "dropout_p is 0.1"),
        (vllm.flash_attn_varlen_func, {"seqused_k": None}, "block_table is given without"),
        (vllm.flash_attn_varlen_func, {"block_table": None}, "cu_seqlens_k is missing"),
        (sglang.flash_attn_varlen_func, {"score_mod": len}, "score_mod is given, and functions of"),
        (sglang.flash_attn_varlen_func, {"sm_margin": 4}, "sm_margin is given"),
    ],
)
def test_what_has_no_kernel_is_refused(function: Any, given: dict[str, Any], message: str) -> None:
    step = Step("cpu", torch.float32)
    pages = "block_table" if function is vllm.flash_attn_varlen_func else "page_table"
    options: dict[str, Any] = {"cu_seqlens_q": step.starts, "cu_seqlens_k": None}
    options |= {"max_seqlen_q": 5, "max_seqlen_k": 37, "seqused_k": step.used, pages: step.table}
    with pytest.raises(UnsupportedError, match=message):
        function(step.q, step.k, step.v, **options | given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        function(step.q, step.k, step.v, **options, nothing=1)


@pytest.mark.parametrize(("device", "dtype", "tolerance"), DEVICES)
@pytest.mark.parametrize(("batch", "rows"), [(3, 2), (3, 0), (0, 2)])
def test_dense_queries_over_pages_of_sglang(
    batch: int, rows: int, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    step = Step(device, dtype)
    q = step.q[: batch * rows].view(batch, rows, HEADS, D)
    out = torch.full_like(q.transpose(0, 1), math.nan).contiguous().transpose(0, 1)
    found = sglang.flash_attn_with_kvcache(
        *(q, step.k, step.v),
        page_table=step.table[:batch],
        cache_seqlens=step.used[:batch],
        causal=True,
        return_softmax_lse=True,
        out=out,
    )
    assert found[0] is out
    assert found[1].shape == (batch, HEADS, rows)
    for i in range(batch if rows else 0):
        pages = step.table[i].long()
        k, v = (t[pages].flatten(0, 1)[None, : KEYS[i]].double().cpu() for t in (step.k, step.v))
        wanted, lse = attention(q[i, None].double().cpu(), k, v, causal=True, return_lse=True)
        close(out[i], wanted[0], tolerance)
        close(found[1][i], lse[0], tolerance)


def test_sglang_is_told_what_queries_are() -> None:
    step = Step("cpu", torch.float32)
    with pytest.raises(UnsupportedError, match="q has 1 dimensions"):
        sglang.flash_attn_with_kvcache(
            step.q[0, 0], step.k, step.v, page_table=step.table, cache_seqlens=step.used
        )

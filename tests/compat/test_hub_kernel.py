# SPDX-License-Identifier: Apache-2.0
"""The kernel repository: that `kernels` loads it, the parameters that transformers passes, and
what its functions compute with sinks."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention import attention
from flash_attention.compat import hub_kernel
from flash_attention.errors import UnsupportedError
from tests.test_switch_document import ran_program

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_kernels_loads_it(tmp_path: Path) -> None:
    kernels = pytest.importorskip("kernels", reason="kernels is not installed")
    module = kernels.get_local_kernel(hub_kernel.save_repository(tmp_path))
    for name in hub_kernel.FUNCTIONS:
        assert getattr(module, name) is getattr(hub_kernel, name)


def test_the_document_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kernels", reason="kernels is not installed")
    monkeypatch.chdir(tmp_path)
    found = ran_program("from kernels import")
    assert found["kernel"].flash_attn_func is hub_kernel.flash_attn_func
    q, k, v = (found[name] for name in "qkv")
    torch.testing.assert_close(found["out"], attention(q, k, v, causal=True))


def test_it_is_offered_under_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"other/kernel=/there:{hub_kernel.REPOSITORY}=/old")
    assert hub_kernel.offer(tmp_path) == "flash-attention/jit"
    assert os.environ["LOCAL_KERNELS"] == f"other/kernel=/there:flash-attention/jit={tmp_path}"
    for name in ("jit", "a/b/c", "a/", "a/b@main", "a=b/c"):
        with pytest.raises(UnsupportedError, match="pass organisation/repository"):
            hub_kernel.offer(tmp_path, name)
    with pytest.raises(UnsupportedError, match="a colon ends a name"):
        hub_kernel.offer(tmp_path / "a:b")
    assert not (tmp_path / "a:b").exists()


def test_transformers_asks_for_parameters_that_are_here() -> None:
    """transformers leaves out what a function has no parameter for, sinks too."""
    utils = pytest.importorskip(
        "transformers.modeling_flash_attention_utils", reason="transformers is not installed"
    )
    if not hasattr(utils, "_flash_api_alternative_names"):
        pytest.skip("transformers 4 loads other repositories")
    asked = inspect.signature(utils._process_flash_attention_kwargs).parameters
    renamed = {"is_causal": "causal", **utils._hf_api_to_flash_mapping}
    known = {renamed.get(name, name) for name in asked}
    known -= {"query_length", "key_length", "use_top_left_mask", "supports_mapping", "kwargs"}
    assert known == {
        *("causal", "dropout_p", "softmax_scale", "window_size", "softcap", "deterministic"),
        *("s_aux", "max_seqlen_q", "max_seqlen_k", "block_table", "cache_seqlens"),
    }
    packed = {*inspect.signature(hub_kernel.flash_attn_varlen_func).parameters}
    assert known - packed == {"cache_seqlens"}
    cached = {*inspect.signature(hub_kernel.flash_attn_with_kvcache).parameters}
    assert known - cached == {"dropout_p", "deterministic", "max_seqlen_q", "max_seqlen_k"}


def test_sinks() -> None:
    sinks = SINKS.clone().requires_grad_()
    q, k, v = draw(2, 8, 4, 16), draw(2, 8, 2, 16), draw(2, 8, 2, 16) + 1
    options: dict[str, Any] = {"causal": True, "softmax_scale": 0.3}
    wanted = attention(q, k, v, sinks=SINKS, window=(3, 0), **options)
    out = hub_kernel.flash_attn_func(q, k, v, window_size=(3, 0), s_aux=sinks, **options)
    torch.testing.assert_close(out, wanted)
    out.sum().backward()
    assert sinks.grad is not None
    assert sinks.grad.abs().min() > 0
    starts = torch.tensor([0, 8, 16], dtype=torch.int32)
    rows = [t.flatten(0, 1) for t in (q, k, v)]
    varlen: Any = hub_kernel.flash_attn_varlen_func
    packed = varlen(*(*rows, starts, starts, 8, 8), window_size=(3, 0), s_aux=SINKS, **options)
    torch.testing.assert_close(packed, wanted.flatten(0, 1))
    caches = [t.clone() for t in (k, v)]
    new = [t[:, 7:].clone() for t in caches]
    for cache in caches:
        cache[:, 7:] = 0
    with_kvcache: Any = hub_kernel.flash_attn_with_kvcache
    last = with_kvcache(
        *(q[:, 7:], *caches, *new, torch.tensor([7, 7]).int()),
        window_size=(3, 0),
        s_aux=SINKS.bfloat16(),
        **options,
    )
    torch.testing.assert_close(last, wanted[:, 7:])
    assert torch.equal(caches[0], k)

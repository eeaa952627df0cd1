# SPDX-License-Identifier: Apache-2.0
"""vLLM's library is told from upstream's, and its operator told what the call is."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import torch

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.peers.vllm_fa3 import load_vllm_fa3, vllm_fa3_arguments
from flash_attention_workbench.bench.serving import Layer, Step
from flash_attention_workbench.bench.serving_run import call_of

CPU = torch.device("cpu")


def test_a_packed_library_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(
        torch.ops, "load_library", lambda path: loaded.append(Path(path).read_bytes())
    )
    library = tmp_path / "_vllm_fa3_C.abi3.so.xz"
    library.write_bytes(lzma.compress(b"operators"))
    with pytest.raises(AttributeError):  # of the operator, which nobody registered
        load_vllm_fa3(library)
    assert loaded == [b"operators"]
    other = tmp_path / "flash_attn_3_C.so"
    other.touch()
    with pytest.raises(UnsupportedError, match="the library of vLLM's build"):
        load_vllm_fa3(other)


def test_arguments_are_in_the_operators_order() -> None:
    layer = Layer(heads=4, heads_k=2, d=64, page=16, sinks=True)
    call = call_of(Step("two", (1, 3), (20, 30), layer), CPU)
    arguments = vllm_fa3_arguments(call, 30)
    assert len(arguments) == 37
    placed = {0: call.q, 1: call.k, 2: call.v, 6: call.out, 7: call.cu_seqlens_q}
    placed |= {11: call.seqused_k, 14: call.block_table}
    assert all(arguments[place] is tensor for place, tensor in placed.items())
    assert arguments[12:14] == [3, 30]
    assert arguments[20:33] == [
        *(None, None, None, 0.125, True, -1, -1, 0.0, True, None, 0, None, 0)
    ]
    assert call.sinks is not None
    assert torch.equal(arguments[33].float(), call.sinks)
    assert arguments[34:] == [1, 0, None]


def test_factors_are_those_of_every_head() -> None:
    layer = Layer(heads=4, heads_k=2, d=64, page=64, of_8_bits=True)
    arguments = vllm_fa3_arguments(call_of(Step("two", (1, 1), (20, 30), layer), CPU), 30)
    assert [tuple(factor.shape) for factor in arguments[20:23]] == [(2, 2)] * 3

# SPDX-License-Identifier: Apache-2.0
"""Peers agree with the oracle on a GPU; anywhere, those that are missing say why."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from flash_attention.bench.peers import FA3_ARGUMENTS, FA3_VARIABLE, PEERS, line_up, load_fa3, sdpa
from flash_attention.errors import UnsupportedError
from flash_attention.testing import Judge, generate_qkv


def test_without_a_gpu_every_peer_is_missing_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FA3_VARIABLE, raising=False)
    lineup = line_up(PEERS, *generate_qkv(1, 64, 2, 64, torch.float16))
    assert lineup.contenders == ()
    assert lineup.missing == {
        "fa3": "no library of it is named; set FLASH_ATTENTION_FA3 to its path",
        "cudnn": "needs CUDA tensors, q is on cpu",
        "fa2": "needs CUDA tensors, q is on cpu",
    }


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="unknown peer 'fa9'; there are fa3, cudnn, fa2"):
        line_up(["fa9"], *generate_qkv(1, 64, 2, 64, torch.float16))


def test_a_library_that_is_not_there_or_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = generate_qkv(1, 64, 2, 64, torch.float16)
    monkeypatch.setenv(FA3_VARIABLE, str(tmp_path / "gone.so"))
    assert "there is no library" in line_up(["fa3"], *tensors).missing["fa3"]
    packed = tmp_path / "text.so.xz"
    packed.write_bytes(lzma.compress(b"no library at all"))
    assert "text.so" in line_up(["fa3"], *tensors, fa3=packed).missing["fa3"]


def test_a_packed_library_is_loaded_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []
    monkeypatch.setattr(
        torch.ops, "load_library", lambda path: loaded.append(Path(path).read_bytes())
    )
    packed = tmp_path / "fa3.so.xz"
    packed.write_bytes(lzma.compress(b"machine code"))
    with pytest.raises((AttributeError, RuntimeError)):
        load_fa3(packed)
    assert loaded == [b"machine code"]


def test_the_operator_gets_its_37_arguments_in_order() -> None:
    names = list(FA3_ARGUMENTS)
    assert len(names) == 37
    assert names[:7] == ["q", "k", "v", "k_new", "v_new", "q_v", "out"]
    assert names.index("cu_seqlens_q") == 7
    assert names.index("max_seqlen_q") == 12
    assert names.index("softmax_scale") == 23
    assert names[-1] == "cp_tot_seqused_k"


def test_torchs_causal_mask_is_used_only_where_it_is_ours() -> None:
    q, k, v = generate_qkv(1, 64, 2, 64, torch.float16, seq_len_k=32)

    class OnCuda(torch.Tensor):
        is_cuda = True

    with pytest.raises(UnsupportedError, match="64 queries and 32 keys they differ"):
        sdpa(SDPBackend.FLASH_ATTENTION, "fa2", q.as_subclass(OnCuda), k, v, causal=True)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_peers_compute_attention(causal: bool) -> None:
    q, k, v = generate_qkv(2, 256, 4, 64, torch.bfloat16, "cuda")
    names = [name for name in PEERS if name != "fa3" or FA3_VARIABLE in os.environ]
    lineup = line_up(names, q, k, v, causal=causal)
    assert lineup.contenders
    judge = Judge(q, k, v, causal=causal)
    for contender in lineup.contenders:
        contender.poison()
        check = judge.check(contender.run())
        assert check.ok, f"{contender.name}: {check}"

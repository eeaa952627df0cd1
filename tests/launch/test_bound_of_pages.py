# SPDX-License-Identifier: Apache-2.0
"""max_seqlen_k beside pages: the most keys of any sequence, for which kernels are chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flash_attention import UnsupportedError, attention, explain
from flash_attention.arch import ARCHES
from flash_attention.call.call import Call
from flash_attention.call.lengths import check_lengths
from flash_attention.call.problem import Problem
from flash_attention.launch.emulation import Settings, emulate_plan
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv
from tests.decode_cases import FAR, in_pages, shuffled_table

PAGE, COLUMNS = 16, 64


def paged(used: tuple[int, ...] = (300, 77), **options: Any) -> Call:
    """One query of two sequences, in a table of many more pages than they have."""
    most = -(-max(used) // PAGE)
    q, k, v = generate_qkv(2, 1, 4, 64, torch.bfloat16, seq_len_k=most * PAGE, n_heads_k=2)
    table = shuffled_table(2, most)
    k, v = (in_pages(t, table, PAGE) for t in (k, v))
    wide = torch.full((2, COLUMNS), FAR, dtype=torch.int32)
    for row, listed, keys in zip(wide, table, used, strict=True):
        row[: -(-keys // PAGE)] = listed[: -(-keys // PAGE)]
    lengths = torch.tensor(used, dtype=torch.int32)
    return Call(q, k, v, block_table=wide, seqused_k=lengths, **options)


def test_few_plans_serve_all_bounds_and_none_more_than_the_table() -> None:
    keys = [Problem.of(paged(max_seqlen_k=bound)).seq_k for bound in (300, 320, 321, 512, 5000)]
    assert keys == [320, 320, 352, 512, COLUMNS * PAGE]
    call = paged(max_seqlen_k=300)
    bounds = {n: call._replace(max_seqlen_k=n).bound_of_pages() for n in range(COLUMNS * PAGE)}
    assert all(bound is not None and n <= bound <= 1.125 * n for n, bound in bounds.items())
    assert len(set(bounds.values())) < 70
    assert Problem.of(paged()).seq_k == COLUMNS * PAGE
    assert Problem.of(paged((0, 0), max_seqlen_k=0)).idle
    assert call.key() == call._replace(max_seqlen_k=320).key()
    others = [call._replace(max_seqlen_k=bound).key() for bound in (321, 0, -320, None)]
    assert len({call.key(), *others}) == 5
    packed = call._replace(block_table=None)
    assert packed.key() != packed._replace(max_seqlen_k=320).key()


def test_few_keys_in_a_wide_table_are_split_as_if_the_table_had_no_more() -> None:
    q, k, v = (t.to("meta") for t in paged()[:3])
    table = torch.empty(2, 4096, dtype=torch.int32, device="meta")
    used = torch.empty(2, dtype=torch.int32, device="meta")
    asked: dict[str, Any] = {"seqused_k": used, "arch": "sm_90"}
    bounded = explain(q, k, v, block_table=table, max_seqlen_k=4096, **asked)
    narrow = explain(q, k, v, block_table=table[:, : 4096 // PAGE].contiguous(), **asked)
    wide = explain(q, k, v, block_table=table, **asked)
    assert (bounded.config, bounded.num_splits) == (narrow.config, narrow.num_splits)
    assert bounded.problem.seq_k == narrow.problem.seq_k == 4096
    assert wide.problem.seq_k == 4096 * PAGE


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_kernels_of_a_bound_give_what_attention_is(arch: str) -> None:
    call = paged(max_seqlen_k=300, causal=True, return_lse=True)
    wanted = attention(*call[:3], **call._replace(max_seqlen_k=None).keywords(), return_lse=True)
    on_cpu = attention(*call[:3], **call.keywords(), return_lse=True)
    assert all(map(torch.equal, on_cpu, wanted))
    result = emulate_plan(Plan(call, arch=ARCHES[arch]), call, Settings())
    assert list(map(str, result.findings)) == []
    assert result.lse is not None
    torch.testing.assert_close(result.output, wanted[0], rtol=1.6e-2, atol=1.6e-2)
    torch.testing.assert_close(result.lse, wanted[1], rtol=1e-3, atol=1e-3)


def test_lengths_are_checked_against_the_bound() -> None:
    for bound in (300, 4096):
        call = paged(max_seqlen_k=bound)
        check_lengths(Problem.of(call), call)
    call = paged(max_seqlen_k=299)
    message = r"seqused_k\[0\] is 300; max_seqlen_k is 299, allowed are 0 to 299"
    with pytest.raises(UnsupportedError, match=message):
        check_lengths(Problem.of(call), call)
    with pytest.raises(UnsupportedError, match=message):
        attention(*call[:3], **call.keywords())  # the CPU always checks
    beyond = call._replace(seqused_k=torch.tensor([5000, 1]).int(), max_seqlen_k=8000)
    with pytest.raises(UnsupportedError, match="sequence 0 has 1024 keys, allowed are 0 to 1024"):
        check_lengths(Problem.of(beyond), beyond)


@pytest.mark.parametrize("bound", [-1, 7.0, "7", True, torch.tensor(300), 2**31])
def test_a_bound_is_a_whole_number(bound: Any) -> None:
    call = paged(max_seqlen_k=bound)
    with pytest.raises(UnsupportedError, match=r"max_seqlen_k is .*; pass the length of the long"):
        attention(*call[:3], **call.keywords())
    call = paged(max_seqlen_k=np.int64(300))
    assert attention(*call[:3], **call.keywords()).shape == call.q.shape


def test_descale_factors_cover_the_bound() -> None:
    call = paged((300, 77))
    k, v = (t.to(torch.float8_e4m3fn) for t in call[1:3])
    factors = torch.rand(2, 2, 3) + 0.5  # for 384 keys
    given: dict[str, Any] = {"k_descale": factors, "v_descale": factors}
    given |= {"block_table": call.block_table, "seqused_k": call.seqused_k}
    narrow = given | {"block_table": given["block_table"][:, : 384 // PAGE]}
    out = attention(call.q, k, v, **given, max_seqlen_k=384)
    assert torch.equal(out, attention(call.q, k, v, **narrow))
    with pytest.raises(UnsupportedError, match="up to 385 keys; pass at least 4 blocks"):
        attention(call.q, k, v, **given, max_seqlen_k=385)
    with pytest.raises(UnsupportedError, match="up to 1024 keys; pass at least 8 blocks"):
        attention(call.q, k, v, **given)


def test_a_bound_is_an_argument_of_the_operator() -> None:
    call = paged(max_seqlen_k=300)
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    out = compiled(*call[:3], **call.keywords())
    assert torch.equal(out, attention(*call[:3], **call.keywords()))


@pytest.mark.gpu
def test_a_gpu_reads_a_wide_table_with_any_bound() -> None:
    on_cpu = paged((300, 77))
    wanted = attention(*on_cpu[:3], **on_cpu.keywords(), return_lse=True)
    given = {n: t for n, t in on_cpu._asdict().items() if isinstance(t, torch.Tensor)}
    tensors: dict[str, Any] = {name: tensor.cuda() for name, tensor in given.items()}
    for bound in (300, 301, 700, 4096, None):
        call = Call(**tensors, max_seqlen_k=bound)
        keywords = call.keywords()
        out, lse = attention(*call[:3], **keywords, return_lse=True, validate=True)
        torch.testing.assert_close(out.cpu(), wanted[0], rtol=1.6e-2, atol=1.6e-2)
        torch.testing.assert_close(lse.cpu(), wanted[1], rtol=1e-3, atol=1e-3)
    with pytest.raises(UnsupportedError, match="max_seqlen_k is 299"):
        attention(*call[:3], **(keywords | {"max_seqlen_k": 299}), validate=True)

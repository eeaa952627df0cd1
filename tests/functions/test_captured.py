# SPDX-License-Identifier: Apache-2.0
"""Captured tensors and numbers are read when a kernel runs: no kernel is compiled for others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from flash_attention import Function, attention, masks, scores
from flash_attention.reference.judge import Judge
from tests.devices import HOPPER

pytestmark = HOPPER

SEQ, HEADS = 700, 4


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q = torch.randn(2, SEQ, HEADS, 64, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 2, SEQ, 2, 64, device="cuda", dtype=torch.bfloat16)
    return q, k, v


def documents(length: int) -> Tensor:
    return torch.arange(SEQ, device="cuda", dtype=torch.int32) // length


def assert_right(output: Tensor, q: Tensor, k: Tensor, v: Tensor, function: Function) -> None:
    check = Judge(q.detach(), k.detach(), v.detach(), function=function).check(output)
    assert check.ok, check


def both_passes(q: Tensor, k: Tensor, v: Tensor, function: Function) -> tuple[Tensor, ...]:
    output = attention(q, k, v, function=function, deterministic=True)
    return (output, *torch.autograd.grad(output, (q, k, v), torch.ones_like(output)))


def test_a_graph_reads_captured_tensors_when_it_is_replayed() -> None:
    q, k, v = (t.requires_grad_() for t in tensors())
    ids, slopes = documents(100), scores.alibi_slopes(HEADS, "cuda")
    function = Function(scores.alibi(slopes), masks.documents(ids))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        both_passes(q, k, v, function)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both_passes(q, k, v, function)
    for length, factor in ((100, 1.0), (37, 2.0), (300, -1.0)):
        ids.copy_(documents(length))
        slopes.copy_(factor * scores.alibi_slopes(HEADS, "cuda"))
        graph.replay()
        assert_right(found[0], q, k, v, function)
        for replayed, expected in zip(found, both_passes(q, k, v, function), strict=True):
            assert torch.equal(replayed, expected)


def test_other_documents_and_other_numbers_compile_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    q, k, v = (t.requires_grad_() for t in tensors())

    def run(length: int, cap: float, step: int) -> None:
        mask = masks.documents(documents(length)) | masks.dilated(step)
        function = Function(scores.softcap(cap), mask)
        assert_right(both_passes(q, k, v, function)[0], q, k, v, function)

    run(100, 3.0, 7)
    kernels = sorted(tmp_path.iterdir())
    assert kernels
    for length, cap, step in ((31, 5.0, 3), (699, 1.5, 50)):
        run(length, cap, step)
    assert sorted(tmp_path.iterdir()) == kernels


def test_a_known_plan_does_not_hide_that_a_captured_tensor_requires_grad() -> None:
    q, k, v = tensors()
    slopes = scores.alibi_slopes(HEADS, "cuda")
    function = Function(scores.alibi(slopes))
    expected = attention(q.requires_grad_(), k, v, function=function)
    slopes.requires_grad_()
    output = attention(q, k, v, function=function)
    assert torch.equal(output, expected)
    (gradient,) = torch.autograd.grad(output.float().square().sum(), slopes)
    assert gradient.abs().min() > 0

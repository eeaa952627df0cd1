# SPDX-License-Identifier: Apache-2.0
"""Calls from threads that have not used CUDA before, as a server's workers are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from flash_attention import attention


@pytest.mark.gpu
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 512), (1, 8192), (4, 300), (512, 512)], ids=str)
def test_a_fresh_thread_gets_what_the_main_thread_gets(seq_q: int, seq_k: int) -> None:
    def tensor(seq: int, heads: int) -> torch.Tensor:
        return torch.randn(2, seq, heads, 128, device="cuda", dtype=torch.bfloat16)

    calls = [(tensor(seq_q, 8), tensor(seq_k, 2), tensor(seq_k, 2)) for _ in range(3)]
    expected = [attention(*call, causal=True) for call in calls]
    out = [torch.empty_like(call[0]) for call in calls]
    for call, o, wanted in zip(calls, out, expected, strict=True):
        # New copies lie at addresses that no tensor map is known of yet.
        q, k, v = (t.clone() for t in call)
        with ThreadPoolExecutor(1) as worker:
            worker.submit(partial(attention, q, k, v, causal=True, out=o)).result()
        torch.cuda.synchronize()
        assert torch.equal(o, wanted)


@pytest.mark.gpu
def test_threads_that_call_at_once_do_not_disturb_each_other() -> None:
    shape = (1, 256, 4, 128)
    calls = [torch.randn(3, *shape, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    expected = [attention(*call, causal=True) for call in calls]
    torch.cuda.synchronize()

    def run(i: int) -> bool:
        found = [attention(*calls[i], causal=True) for _ in range(200)]
        torch.cuda.synchronize()
        return all(torch.equal(o, expected[i]) for o in found)

    with ThreadPoolExecutor(len(calls)) as workers:
        assert all(workers.map(run, range(len(calls))))

# SPDX-License-Identifier: Apache-2.0
"""Pages of any size give what attention is, on both families, in the emulator and on a GPU."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.arch import ARCHES
from flash_attention.call.call import Call
from flash_attention.launch.emulation import Settings
from flash_attention.launch.plan import Plan
from flash_attention.reference.judge import generate_qkv
from tests.decode_cases import FAR, in_pages, shuffled_table
from tests.devices import ran
from tests.gate import EXHAUSTIVE, in_turn

pytestmark = pytest.mark.slow  # left out of `make quick`

SM80_CONFIG = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_1_tiles+buffer+opt_softmax"
HOPPER = "hopper(BF16, 64, 1, 64, 2): tma+specialised"
OPTIONS: list[dict[str, Any]] = [{}, {"causal": True}, {"window": (30, 4)}]


def calls(page_keys: int, seq_q: int, d: int, **options: Any) -> tuple[Call, Call]:
    """The same attention with keys in pages, and dense. Pages beyond the keys do not exist."""
    columns = -(-150 // page_keys)
    q, k, v = generate_qkv(
        2, seq_q, 4, d, torch.bfloat16, seq_len_k=columns * page_keys, n_heads_k=2
    )
    used = torch.tensor([columns * page_keys - 1, 77], dtype=torch.int32)
    table = shuffled_table(2, columns)
    k_pages, v_pages = (in_pages(t, table, page_keys) for t in (k, v))
    table[1, -(-77 // page_keys) :] = FAR
    common: Any = {"seqused_k": used, "return_lse": True, **options}
    return Call(q, k_pages, v_pages, block_table=table, **common), Call(q, k, v, **common)


def on_device(call: Call, device: str) -> Call:
    moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in call.tensors().items()}
    return call._replace(**moved)


def check(plan: Plan, call: Call, dense: Call, settings: Settings | None = None) -> None:
    found, found_lse = ran(plan, call, settings)
    out, lse = attention(*dense[:3], **dense.keywords(), return_lse=True)
    assert found_lse is not None
    torch.testing.assert_close(found.float().cpu(), out.float(), rtol=1.6e-2, atol=1.6e-2)
    torch.testing.assert_close(found_lse.cpu(), lse, rtol=1e-3, atol=1e-3)


SIZES = [
    pytest.param(
        *(page_keys, d, seq_q, OPTIONS[(page_keys + seq_q) % 3], arch),
        marks=() if (place + (seq_q == 2) + (arch == "sm_80")) % 2 else EXHAUSTIVE,
    )
    for place, (page_keys, d) in enumerate(((1, 64), (1, 96), (3, 64), (24, 128), (10, 96)))
    for seq_q in (2, 100)
    for arch in ("sm_80", "sm_90")
] + [
    pytest.param(*size, "", marks=pytest.mark.gpu)
    for size in product(
        (1, 2, 3, 5, 8, 12, 20, 24, 48, 96, 100), (64, 96, 128, 256), (1, 7, 300), OPTIONS
    )
]


@pytest.mark.parametrize(("page_keys", "d", "seq_q", "options", "arch"), SIZES, ids=str)
def test_kernels_read_pages_of_any_size(
    page_keys: int, d: int, seq_q: int, options: dict[str, Any], arch: str
) -> None:
    """Of an architecture in the emulator, or of a GPU."""
    call, dense = calls(page_keys, seq_q, d, **options)
    call = on_device(call, "cpu" if arch else "cuda")
    check(Plan(call, arch=ARCHES.get(arch)), call, dense)


@pytest.mark.parametrize(
    ("arch", "schedule"), in_turn(["sm_80", "sm_90"], ["depth-first", "random"])
)
def test_small_pages_are_right_in_every_order(schedule: str, arch: str) -> None:
    call, dense = calls(1, 70, 64, causal=True)
    check(Plan(call, arch=ARCHES[arch]), call, dense, Settings(schedule, 3))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("page", [FAR, -1, 10**9])
def test_pages_that_do_not_exist_are_zeros(page: int, arch: str) -> None:
    """A kernel reads nothing outside of the cache, whatever the table says."""
    call, dense = calls(2, 2, 64)
    assert call.block_table is not None
    call.block_table[0, 5:9] = page
    dense.k[0, 10:18] = dense.v[0, 10:18] = 0
    check(Plan(call, arch=ARCHES[arch]), call, dense)


@pytest.mark.gpu
@pytest.mark.parametrize("page_keys", [1, 3, 16, 24, 256])
@pytest.mark.parametrize("page", [None, FAR, -1])
def test_a_gpu_reads_pages_with_ampere_kernels(page_keys: int, page: int | None) -> None:
    call, dense = calls(page_keys, 30, 128, causal=True)
    if page is not None:
        assert call.block_table is not None
        call.block_table[0, 0] = page
        dense.k[0, :page_keys] = dense.v[0, :page_keys] = 0
    call = on_device(call, "cuda")
    check(Plan(call, SM80_CONFIG), call, dense)


@pytest.mark.usefixtures("no_compile")
def test_empty_pages_and_tables_are_no_keys() -> None:
    q, _, _ = generate_qkv(2, 1, 4, 64, torch.bfloat16)
    none = torch.zeros(2, dtype=torch.int32)
    for pages, columns in ((0, 3), (3, 0)):
        k = torch.zeros(pages, 16, 2, 64, dtype=torch.bfloat16)
        table = torch.zeros(2, columns, dtype=torch.int32)
        out = attention(q, k, k, seqused_k=none, block_table=table)
        assert bool((out == 0).all())
        for config in (None, HOPPER):
            assert Plan(Call(q, k, k, seqused_k=none, block_table=table), config).idle

# SPDX-License-Identifier: Apache-2.0
"""Functions over KV caches, where queries are at their absolute places, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flash_attention import Function, attention, masks
from flash_attention.arch import MEASURED_ARCH
from flash_attention.call.call import Call
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.launch import device as devices
from flash_attention.launch.plan import Plan
from tests.devices import HOPPER_DEVICES, on_devices, ran
from tests.functions.cases import FORWARD, kernels
from tests.serving_steps import Step, assert_right, random_step

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def more_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a sequence has many parts in the emulator."""
    monkeypatch.setattr(devices, "EMULATED_SMS", 6)


HEADS, KEYS = 64, 1 << 15  # the most of all steps


def of_everything(device: str) -> Function:
    """It is wrong if the batch, the head, the query or the key is, and hides whole blocks."""
    slopes = torch.linspace(-0.02, 0.05, HEADS, device=device)
    ids = torch.arange(KEYS, dtype=torch.int32, device=device) // 192
    return Function(
        lambda score, batch, head, query, key: (
            score * (1 - 0.1 * (batch % 3)) - slopes[head] * (query - key)
        ),
        lambda batch, head, query, key: (ids[query] == ids[key]) | (key < 9),
    )


def of_heads(device: str) -> Function:
    """A mask that differs from head to head."""
    reach = torch.tensor([40, 9, 200, 0], device=device).repeat(HEADS // 4)
    return Function(mask=lambda batch, head, query, key: query - key <= reach[head] + 7 * batch)


def of_scores(device: str) -> Function:
    """A score function alone."""
    slopes = torch.linspace(-0.02, 0.05, HEADS, device=device)
    return Function(lambda score, batch, head, query, key: score + slopes[head] * (key - query))


def of_gaps(device: str) -> Function:
    """A mask without whole blocks, which hides every third of 128 keys."""
    return Function(
        mask=lambda batch, head, query, key: (key // 128 % 3 != 1) & ((query - key) % 5 != 0)
    )


MAKES = {make.__name__: make for make in (of_everything, of_heads, of_scores, of_gaps)}
WINDOW = (("window", (170, 3)), ("softcap", 3.0))
FULL = (("causal", False),)
STEPS = {
    "decodes": Step((1, 1, 1), (500, 1, 177)),
    "no queries, no keys": Step((1, 0, 1, 0, 1), (300, 40, 0, 0, 200), sinks=True, keywords=FULL),
    "speculative, 7 heads of a group": Step((4, 2, 9), (300, 99, 5), page=3, heads=14),
    "pages of 64, d 128": Step((2, 2), (700, 65), padded=True, page=64, d=128),
    "a window, a softcap and sinks": Step((3, 1), (333, 400), sinks=True, keywords=WINDOW),
    "a chunk": Step((100, 1, 0, 3), (1030, 33, 0, 350)),
    "a split chunk with a narrow end": Step((100,), (1070,)),
}
PREFILL = Step((90, 0, 70), (250, 0, 70), page=48, sinks=True)
CASES = [
    *(("of_everything", name) for name in STEPS if "narrow" not in name),
    ("of_gaps", "a split chunk with a narrow end"),
    ("of_heads", "speculative, 7 heads of a group"),
    ("of_scores", "decodes"),
]


def check(call: Call, splits: SplitKind, config: str | None = None) -> Tensor:
    """Assert that a config is right, or the one that `attention` chooses. Returns the output."""
    if call.q.is_cuda:
        plan = Plan(call, config)  # a GPU has more multiprocessors, and may not need to split
    else:
        plan = Plan(call, config, arch=MEASURED_ARCH)
        features = plan.recipe.features
        assert isinstance(features, Sm90Features)
        assert features.splits is splits
    out, lse = ran(plan, call)
    assert_right(call, out, lse)
    return out


@pytest.mark.parametrize(("make", "name", "device"), on_devices(CASES))
def test_steps_are_right(make: str, name: str, device: str) -> None:
    call = STEPS[name].call(device)._replace(function=MAKES[make](device))
    check(call, SplitKind.ON_DEVICE)


@pytest.mark.parametrize(("make", "device"), on_devices(MAKES))
def test_tiles_of_one_head_are_right(make: str, device: str) -> None:
    call = PREFILL.call(device)._replace(function=MAKES[make](device))
    check(call, SplitKind.WHOLE, FORWARD.format(64))


OLDER = {
    "of_everything": Step((40, 0, 30), (150, 0, 70), sinks=True),
    "of_heads": Step((1, 1), (150, 1), page=32),
    "of_scores": Step((4, 2, 9), (200, 99, 5), heads=6, sinks=True),
}


@pytest.mark.parametrize(("make", "device"), on_devices(OLDER, mark=pytest.mark.gpu))
def test_pages_of_older_kernels_are_right(make: str, device: str) -> None:
    call = OLDER[make].call(device)._replace(function=MAKES[make](device))
    out, lse = ran(Plan(call, kernels("sm_80")[0]), call)
    assert_right(call, out, lse)


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_drafts_of_speculative_decoding_see_their_branch_of_a_tree(device: str) -> None:
    """Against attention of every path from a root to a node, with the keys of the path alone."""
    parents, cached = [-1, 0, 0, 1, 2, 2, 5], (500, 64, 3)
    call = Step((7, 7, 7), tuple(n + 7 for n in cached)).call(device)
    lengths = torch.tensor(cached, dtype=torch.int32, device=device)
    mask = masks.tree(torch.tensor(parents, device=device), cached=lengths)
    call = call._replace(causal=False, function=Function(mask=mask))
    out, table = check(call, SplitKind.ON_DEVICE), call.block_table
    assert table is not None
    for sequence, before in enumerate(cached):
        for node in range(7):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            places = [*range(before), *(before + each for each in path)]
            pages = table[sequence, torch.tensor(places) // 16]
            k, v = (t[pages.long(), torch.tensor(places) % 16][None] for t in (call.k, call.v))
            row = 7 * sequence + node
            wanted = attention(call.q[None, row : row + 1].cpu(), k.cpu(), v.cpu())
            torch.testing.assert_close(out[row].cpu(), wanted[0, 0], rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_keys_need_no_pages(device: str) -> None:
    call = STEPS["decodes"].call(device)
    k, v = torch.randn(2, 3, 500, 2, 64, device=device).bfloat16()
    call = call._replace(k=k, v=v, block_table=None, function=of_everything(device))
    check(call, SplitKind.ON_DEVICE)


DENSE = {
    SplitKind.WHOLE: (3, 100, 2),
    SplitKind.FIXED: (3, 700, 2),
    SplitKind.EVEN: (16, 1280, 4),
}


@pytest.mark.parametrize(("splits", "device"), on_devices(DENSE))
def test_few_queries_of_dense_tensors_are_right(splits: SplitKind, device: str) -> None:
    """Their queries count from 0, and their keys are split too."""
    seq_q, seq_k, heads_k = DENSE[splits]
    generator = torch.Generator().manual_seed(seq_k)
    q = torch.randn(1, seq_q, 8, 64, generator=generator).to(device, torch.bfloat16)
    k, v = torch.randn(2, 1, seq_k, heads_k, 64, generator=generator).to(device, torch.bfloat16)
    call = Call(q, k, v, function=of_everything(device), return_lse=True)
    check(call, splits)


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("make", MAKES)
def test_random_steps_are_right(make: str) -> None:
    function = MAKES[make]("cuda")
    for seed in range(20):
        call = random_step(seed).call("cuda", seed)._replace(function=function)
        out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
        try:
            assert_right(call, out, lse)
        except AssertionError as error:
            raise AssertionError(f"step {seed}: {random_step(seed)}") from error


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize("name", ["decodes", "a chunk"])
def test_a_graph_follows_lengths_and_captured_tensors_that_change(name: str) -> None:
    call = STEPS[name].call("cuda")
    ids = torch.arange(KEYS, dtype=torch.int32, device="cuda") // 100
    call = call._replace(function=Function(mask=masks.documents(ids)))
    assert call.seqused_k is not None
    attention(*call[:3], **call.keywords(), return_lse=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    for seed in range(3):
        lengths = torch.randint(
            0, 2, call.seqused_k.shape, generator=torch.Generator().manual_seed(seed)
        )
        call.seqused_k.copy_(call.seqused_k // (lengths.to("cuda") + 1))
        ids.copy_(torch.arange(KEYS, dtype=torch.int32, device="cuda") // (30 + 50 * seed))
        graph.replay()
        assert_right(call, out, lse)


@pytest.mark.parametrize("device", HOPPER_DEVICES)
def test_reads_out_of_bounds_are_found_at_their_absolute_place(device: str) -> None:
    call = PREFILL.call(device)
    short = torch.zeros(249, dtype=torch.int32, device=device)
    call = call._replace(function=Function(mask=masks.documents(short)))
    with pytest.raises(IndexError, match=r"of shape \(249,\) is read at index 249"):
        attention(*call[:3], **call.keywords(), config=FORWARD.format(64), validate=True)

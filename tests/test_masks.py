# SPDX-License-Identifier: Apache-2.0
"""Masks by name against what their documentation says, element by element in Python."""

from __future__ import annotations

from collections.abc import Callable
from pickle import dumps, loads
from typing import Any, cast

import pytest
import torch

from flash_attention import masks
from flash_attention.errors import UnsupportedError
from flash_attention.program.torch_reader import grid, see
from flash_attention.program.trace import trace_mask

BATCH, SEQ = 2, 24
IDS = torch.tensor([0] * 5 + [1] * 12 + [2] * 7, dtype=torch.int32)
TWO = torch.stack([IDS, IDS.flip(0)]).long()
IMAGES = torch.tensor([-1] * 4 + [0] * 6 + [-1] * 3 + [1] * 8 + [-1] * 3)
PARENTS = [-1, 0, 0, 1, 1, 2, -1, 6, 3, 5, 7, 7, 8, 0, 13, 13, 14, 12, 4, 9, 2, 20, 21, 6]
PREFIX = torch.tensor([3, 9])


def ancestors(node: int) -> set[int]:
    found = {node}
    while PARENTS[node] >= 0:
        node = PARENTS[node]
        found.add(node)
    return found


def near(q: int, k: int) -> bool:
    return abs(q // 6 - k // 6) <= 1 and abs(q % 6 - k % 6) <= 1


def not_four(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k != 4


CASES: list[tuple[Any, Callable[[int, int, int], bool]]] = [
    (masks.causal(), lambda b, q, k: k <= q),
    (masks.causal(3), lambda b, q, k: k <= q + 3),
    (masks.window(4, 2), lambda b, q, k: q - 4 <= k <= q + 2),
    (masks.window(None, 2), lambda b, q, k: k <= q + 2),
    (masks.window(4, None), lambda b, q, k: q - 4 <= k),
    (masks.prefix_lm(7), lambda b, q, k: k <= q or k < 7),
    (masks.prefix_lm(PREFIX), lambda b, q, k: k <= q or k < (3, 9)[b]),
    (masks.documents(IDS), lambda b, q, k: int(IDS[q]) == int(IDS[k])),
    (masks.documents(TWO), lambda b, q, k: int(TWO[b, q]) == int(TWO[b, k])),
    (masks.documents(lengths=[5, 12, 7]), lambda b, q, k: int(IDS[q]) == int(IDS[k])),
    (masks.sink_window(2, 5), lambda b, q, k: k <= q and (q - k <= 5 or k < 2)),
    (masks.dilated(3), lambda b, q, k: (q - k) % 3 == 0),
    (masks.neighbourhood(6, 1), lambda b, q, k: near(q, k)),
    (
        masks.image_prefix(IMAGES),
        lambda b, q, k: k <= q or int(IMAGES[q]) == int(IMAGES[k]) >= 0,
    ),
    (
        masks.image_prefix(IMAGES.expand(2, -1)),
        lambda b, q, k: k <= q or int(IMAGES[q]) == int(IMAGES[k]) >= 0,
    ),
    (masks.tree(PARENTS), lambda b, q, k: k in ancestors(q)),
    (masks.tree(torch.tensor(PARENTS)), lambda b, q, k: k in ancestors(q)),
    (masks.tree(PARENTS, prefix=5), lambda b, q, k: k < 5 or k - 5 in ancestors(q)),
    (
        masks.tree(PARENTS, cached=torch.zeros(2, dtype=torch.int32)),
        lambda b, q, k: k in ancestors(q),
    ),
    (masks.documents(IDS) & masks.causal(), lambda b, q, k: k <= q and bool(IDS[q] == IDS[k])),
    (masks.dilated(4) | masks.window(2, 0), lambda b, q, k: (q - k) % 4 == 0 or 0 <= q - k <= 2),
    (~masks.window(3, 3), lambda b, q, k: abs(q - k) > 3),
    (masks.causal() & not_four, lambda b, q, k: k <= q and k != 4),
    (not_four | masks.causal(), lambda b, q, k: k <= q or k != 4),
]


@pytest.mark.parametrize("again", [lambda mask: mask, lambda mask: loads(dumps(mask))])
@pytest.mark.parametrize(("mask", "wanted"), CASES)
def test_masks_and_their_pickled_copies(
    mask: Any, wanted: Callable[[int, int, int], bool], again: Callable[[Any], Any]
) -> None:
    mask = again(mask)
    seen = see(trace_mask(mask), grid(BATCH, 1, SEQ, SEQ))[:, 0]
    for b in range(BATCH):
        rows = [[bool(wanted(b, q, k)) for k in range(SEQ)] for q in range(SEQ)]
        assert seen[b].tolist() == rows


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: masks.window(-1, 0), "left is -1; give the number of keys"),
        (lambda: masks.window(None, None), "at least one limit"),
        (lambda: masks.dilated(0), "step is 0; it must be 1 or more"),
        (lambda: masks.neighbourhood(0, 1), "width is 0"),
        (lambda: masks.documents(), "either ids or lengths"),
        (lambda: masks.documents(torch.zeros(3)), "dtype int32 or int64"),
        (lambda: masks.prefix_lm(torch.zeros(2, 3).int()), "must have 1 dimensions"),
        (lambda: masks.tree([1, -1]), "the parent of node 0 is 1"),
        (lambda: masks.documents(cast(Any, [0, 1])), "ids is .0, 1.; pass a tensor of integers"),
        (lambda: masks.prefix_lm(-1), "prefix is -1; give the number of keys"),
        (lambda: masks.sink_window(-1, 3), "sinks is -1; give the number of keys"),
        (lambda: masks.causal() & cast(Any, True), "combined with True; & and . take masks"),
        (
            lambda: masks.tree([-1], prefix=3, cached=torch.tensor([3])),
            "prefix is 3, and cached is given",
        ),
    ],
)
def test_what_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        make()

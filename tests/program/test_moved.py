# SPDX-License-Identifier: Apache-2.0
"""Moved programs compute at a place what the program computes at the place of the whole."""

from __future__ import annotations

import pytest
import torch

from flash_attention.program.moved import moved
from flash_attention.program.torch_reader import Coordinates, change_score, grid, see
from flash_attention.program.trace import trace
from tests.program.grammar import Sizes, random_function

SIZES = Sizes(4, 5, 20, 24)
SHAPE = (2, 3, 9, 11)


@pytest.mark.parametrize("first", [0, 25])
def test_random_functions_are_moved(first: int) -> None:
    at = grid(*SHAPE)
    by_sequence = [torch.tensor(n, dtype=torch.int32) for n in ((3, 1), (7, 2), (0, 13))]
    for seed in range(first, first + 25):
        traced = trace(*random_function(seed, SIZES, torch.float64)[:2])
        score = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).double()
        batch, query, key = (each[at.batch.long()] for each in by_sequence)
        whole = Coordinates(batch, at.head + 2, at.query + query, at.key + key)
        by = dict(zip(("batch", "query", "key"), by_sequence, strict=True)) | {"head": 2}
        same = moved(traced, by)
        assert torch.equal(change_score(same, score, at), change_score(traced, score, whole))
        assert torch.equal(see(same, at), see(traced, whole))
        one = Coordinates(torch.tensor(1), at.head, at.query + 11, at.key + 5)
        same = moved(traced, {"batch": 1, "query": 11, "key": 5})
        assert torch.equal(change_score(same, score, at), change_score(traced, score, one))
        assert same.program == moved(traced, {"batch": 3, "query": 0, "key": 0}).program

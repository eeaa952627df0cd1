# SPDX-License-Identifier: Apache-2.0
"""Padded tensors to packed ones and back, against loops."""

from __future__ import annotations

import pytest
import torch

from flash_attention.compat.bert_padding import (
    index_first_axis,
    index_first_axis_residual,
    index_put_first_axis,
    pad_input,
    unpad_input,
    unpad_input_for_concatenated_sequences,
)

STATES = torch.randn(3, 5, 2, 4, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64], ids=str)
def test_padding_is_taken_out_and_put_back(dtype: torch.dtype) -> None:
    rows, indices, starts, longest, used = unpad_input(STATES, MASK.to(dtype))
    wanted = [STATES[b, i] for b in range(3) for i in range(5) if MASK[b, i]]
    assert torch.equal(rows, torch.stack(wanted))
    assert indices.tolist() == [0, 1, 2, 7, 8, 9, 10]
    assert (starts.tolist(), starts.dtype, longest) == ([0, 3, 6, 7], torch.int32, 3)
    assert used.tolist() == [3, 3, 1]
    assert torch.equal(pad_input(rows, indices, 3, 5), STATES * MASK[..., None, None])
    assert pad_input(rows[:0], indices[:0], 0, 5).shape == (0, 5, 2, 4)


def test_rows_without_use_are_packed_and_not_counted() -> None:
    unused = torch.tensor([[0, 0, 0, 1, 0], [1, 0, 0, 0, 0], [0, 1, 1, 1, 1]])
    rows, indices, starts, longest, used = unpad_input(STATES, MASK, unused)
    assert torch.equal(rows, STATES.flatten(0, 1)[indices])
    assert indices.tolist() == [0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14]
    assert (starts.tolist(), longest, used.tolist()) == ([0, 4, 8, 13], 5, [3, 3, 1])


def test_rows_that_hold_several_sequences_are_packed_by_their_lengths() -> None:
    lengths = torch.tensor([[2, 3, 0, 0, 0], [3, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    rows, indices, starts, longest = unpad_input_for_concatenated_sequences(STATES, lengths)
    assert indices.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]
    assert torch.equal(rows, STATES.flatten(0, 1)[indices])
    assert (starts.tolist(), starts.dtype, longest) == ([0, 2, 5, 8, 9, 10, 11, 12], torch.int32, 3)


def test_rows_are_taken_and_put_with_gradients() -> None:
    indices = torch.tensor([4, 0, 3])
    given = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.equal(index_first_axis(given, indices), given[[4, 0, 3]])
    taken, residual = index_first_axis_residual(given, indices)
    assert torch.equal(taken, given[[4, 0, 3]])
    assert torch.equal(residual, given)
    put = index_put_first_axis(taken, indices, 6)
    wanted = torch.zeros(6, 2, dtype=torch.float64)
    wanted[[4, 0, 3]] = given.detach()[[4, 0, 3]]
    assert torch.equal(put, wanted)
    assert torch.autograd.gradcheck(lambda x: index_put_first_axis(x[:3], indices, 6), given)
    assert torch.autograd.gradcheck(lambda x: index_first_axis_residual(x, indices), given)

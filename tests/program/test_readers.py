# SPDX-License-Identifier: Apache-2.0
"""Random functions: the readers against the functions themselves, called with tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from flash_attention.program.derivative import differentiate
from flash_attention.program.nodes import read_program
from flash_attention.program.torch_reader import change_score, evaluate, grid, see
from flash_attention.program.trace import trace
from tests.devices import DEVICES
from tests.program.grammar import Sizes, random_function
from tests.program.on_device import on_device

SIZES = Sizes(2, 3, 10, 14)
SHAPE = (2, 3, 10, 14)


@pytest.fixture
def _doubles() -> Iterator[None]:
    """Floats that torch makes of integers have 64 bits."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def scores(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.usefixtures("_doubles")
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_torch_reader_computes_what_the_function_does(first: int) -> None:
    at = grid(*SHAPE)
    for seed in range(first, first + 50):
        change, mask, _ = random_function(seed, SIZES, torch.float64)
        score = scores(seed)
        traced = trace(change, mask)
        torch.testing.assert_close(
            change_score(traced, score, at), change(score, *at).double().broadcast_to(SHAPE)
        )
        assert torch.equal(see(traced, at, torch.float64), mask(*at).broadcast_to(SHAPE))


@pytest.mark.parametrize("operation", [operator.floordiv, operator.mod])
def test_torch_reader_names_a_division_by_zero(operation: Callable[[Any, Any], Any]) -> None:
    traced = trace(mask=lambda b, h, q, k: torch.where(q > 0, operation(k, q) == 0, q == 0))
    with pytest.raises(ZeroDivisionError, match="divides an integer by 0"):
        see(traced, grid(*SHAPE))


@pytest.mark.parametrize("divisor", [math.inf, -math.inf, 2.0, -3.0])
@pytest.mark.parametrize("is_captured", [True, False])
def test_remainders_are_those_of_torch(divisor: float, is_captured: bool) -> None:
    numbers = torch.tensor([0.0, 5.5, -5.5, 1e-40, math.inf, -math.inf, math.nan])
    divisors = torch.full((1,), divisor)
    traced = trace(lambda s, b, h, q, k: s % (divisors[b] if is_captured else divisor))
    at, score = grid(1, 1, 1, len(numbers)), numbers.view(1, 1, 1, -1)
    wanted = torch.remainder(score, divisors)
    torch.testing.assert_close(change_score(traced, score, at), wanted, equal_nan=True)
    torch.testing.assert_close(on_device(traced, score, "cpu")[1], wanted, equal_nan=True)


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_derivatives_are_those_of_autograd(first: int) -> None:
    at = grid(*SHAPE)
    for seed in range(first, first + 50):
        change, _, tensors = random_function(seed, SIZES, torch.float64)
        for tensor in tensors:
            tensor.requires_grad_(tensor.is_floating_point())
        score = scores(seed).requires_grad_()
        traced = trace(change)
        given = torch.randn(SHAPE, dtype=torch.float64)
        leaves = [score, *(each for each in traced.tensors if each.requires_grad)]
        wanted = torch.autograd.grad(
            change_score(traced, score, at),
            leaves,
            given,
            allow_unused=True,
            materialize_grads=True,
        )
        derivative = differentiate(traced.program)
        nodes = {
            derivative.slope,
            *(n for load in derivative.loads for n in (load.value, *load.indices)),
        }
        with torch.no_grad():
            values = evaluate(traced, at, score, nodes, program=derivative.program)
        torch.testing.assert_close(values[derivative.slope] * given, wanted[0])
        gradients = {slot: torch.zeros_like(each) for slot, each in enumerate(traced.tensors)}
        for slot, indices, value in derivative.loads:
            places = tuple(values[each].long().expand(SHAPE) for each in indices)
            gradients[slot].index_put_(places, values[value] * given, accumulate=True)
        of_slots = [slot for slot, each in enumerate(traced.tensors) if each.requires_grad]
        for slot, gradient in zip(of_slots, wanted[1:], strict=True):
            torch.testing.assert_close(gradients[slot], gradient)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(30))
def test_cuda_computes_what_torch_does(seed: int, device: str) -> None:
    change, mask, _ = random_function(seed, SIZES)
    traced = trace(change, mask)
    score, at = scores(seed).float(), grid(*SHAPE)
    seen, changed, slopes = on_device(traced, score, device)
    derivative = differentiate(traced.program)
    values = evaluate(traced, at, score.double(), [derivative.slope], program=derivative.program)
    fast_tanh = any(node.op == "tanh" for node in traced.program.nodes)
    rtol, atol = (3e-3, 2e-2) if fast_tanh else (2e-6, 4e-6)
    wanted = change_score(traced, score.double(), at).float()
    torch.testing.assert_close(changed, wanted, rtol=rtol, atol=atol)
    slope = values[derivative.slope].float().broadcast_to(SHAPE)
    torch.testing.assert_close(slopes, slope, rtol=rtol, atol=atol)
    assert torch.equal(seen, see(traced, at))


@pytest.mark.parametrize("seed", range(40))
def test_a_program_is_read_as_it_was_written(seed: int) -> None:
    program = trace(*random_function(seed)[:2]).program
    again = read_program(program.text)
    assert "\n" not in program.text  # torch.compile writes the text into comments
    assert again == program
    assert again.nodes == program.nodes
    assert (again.tensors, again.numbers) == (program.tensors, program.numbers)

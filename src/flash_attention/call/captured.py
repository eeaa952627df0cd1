# SPDX-License-Identifier: Apache-2.0
"""The gradients of captured tensors: where a backward pass adds them up, and whether it still
reads what the forward pass read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flash_attention.call.features import MaskKind
from flash_attention.call.function import Function
from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.program.bias import aligned_keys
from flash_attention.program.derivative import differentiate
from flash_attention.program.layout import DIGITS, Sum
from flash_attention.program.nodes import Gathered, How, Program

_PLACES = ("batch", "head", "query", "key")


def gathering(
    function: Function,
    slots: Sequence[int],
    problem: Problem,
    *,
    deterministic: bool,
    by_tiles: int | None = None,
) -> Function:
    """Return the function for the backward pass of a problem whose kernels compute the gradients
    of the captured tensors in these slots, with memory for them. That of the tensor in slot
    `by_tiles` leaves as tiles of dS."""
    program, tensors = function.program, function.tensors

    def how(slot: int) -> How:
        is_stored = _is_stored(program, slot, problem)
        if slot == by_tiles:
            as_it_is = is_stored and tensors[slot].dtype == problem.dtype
            return How.TILES if as_it_is else How.TILE_SUMS
        return How.STORE if is_stored else How.EXACT if deterministic else How.ADD

    gathered = tuple(Gathered(slot, how(slot)) for slot in slots)
    return _with_sums(
        function,
        replace(program, gathered=gathered),
        tuple(_sum(tensors[slot], how, program, problem) for slot, how in gathered),
    )


def gathering_by_torch(
    function: Function, slots: Sequence[int], precision: torch.dtype
) -> Function:
    """Return the function for a backward pass that torch computes."""
    gathered = tuple(Gathered(slot, How.ADD) for slot in slots)
    return _with_sums(
        function,
        replace(function.program, gathered=gathered),
        tuple(Sum(torch.zeros_like(function.tensors[s], dtype=precision)) for s in slots),
    )


def captured_gradients(function: Function) -> tuple[Tensor, ...]:
    """Return the gradients after the pass, in the dtypes of their tensors."""
    slots = [slot for slot, _ in function.program.gathered]
    return tuple(
        each.total().to(function.tensors[slot].dtype)
        for slot, each in zip(slots, function.sums, strict=True)
    )


Versions = Sequence[tuple[int, Tensor, int]]
"""Captured tensors by their slots, with what torch counts of their changes."""


def versions_of(function: Function) -> Versions:
    """Return the captured tensors, which a backward pass reads again. torch counts no changes of
    inference tensors."""
    captured = enumerate(function.tensors)
    return [(slot, t, t._version) for slot, t in captured if not t.is_inference()]


def check_unchanged(versions: Versions) -> None:
    """Raise UnsupportedError if a captured tensor was changed in place since its version."""
    for slot, tensor, version in versions:
        if tensor._version != version:
            raise UnsupportedError(
                f"captured tensor {slot} of the score or mask function was changed in place after"
                " the forward pass, and the backward pass reads it again; change it after the"
                " backward pass, or capture tensor.clone()"
            )


def _with_sums(function: Function, program: Program, sums: tuple[Sum, ...]) -> Function:
    made = Function.of(function.traced._replace(program=program))
    made.sums = sums
    return made


def _is_stored(program: Program, slot: int, problem: Problem) -> bool:
    """Whether no two scores read the same element: one read has the query and the key as indices,
    and the batch and the head too where there are several."""
    loads = [load for load in differentiate(program).loads if load.slot == slot]
    if len(loads) > 1:
        return False
    indices = loads[0].indices
    places = [program.nodes[i].op for i in indices if program.depends[i]]
    needed = {"query", "key"}
    needed |= {"batch"} if problem.batch > 1 else set()
    needed |= {"head"} if problem.heads > 1 else set()
    return needed <= set(places) and len(set(places)) == len(places) and set(places) <= {*_PLACES}


def _sum(tensor: Tensor, how: How, program: Program, problem: Problem) -> Sum:
    """Return memory for the gradient of a tensor."""
    if how.in_float32:
        digits = None
        if how is How.EXACT:
            digits = torch.zeros(tensor.numel(), DIGITS, dtype=torch.int64, device=tensor.device)
        return Sum(torch.zeros(tensor.shape, device=tensor.device), digits)
    if how is How.TILE_SUMS:  # which all elements are written of
        return Sum(tensor.new_empty(tensor.shape))
    keys = None
    if how is How.TILES:
        *sizes, keys = tensor.shape
        made = tensor.new_empty(*sizes, aligned_keys(keys))
    else:
        made = torch.empty_like(tensor)
    every = problem.batch * problem.heads * problem.seq_q * problem.seq_k
    visits_all = problem.features.mask is MaskKind.FULL and program.mask is None
    if not (visits_all and not problem.per_batch and tensor.numel() == every):
        made.zero_()
    return Sum(made, keys=keys)

# SPDX-License-Identifier: Apache-2.0
"""A program in a part of a problem, whose places are those of the whole."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from flash_attention.program.graph import Graph
from flash_attention.program.nodes import INT, Program, TensorType, Type
from flash_attention.program.trace import Traced


def moved(traced: Traced, by: Mapping[str, int | Tensor]) -> Traced:
    """Return the program with other coordinates: a number is added to "head", "query" and "key",
    and takes the place of "batch". A tensor, int32 (sequences,), has a number for each sequence of
    a packed call. Other numbers do not change the program."""
    program, tensors, numbers = traced
    graph, new_tensors, new_numbers = Graph(), list(tensors), list(numbers)

    def value(of: int | Tensor) -> int:
        if isinstance(of, Tensor):
            new_tensors.append(of)
            return graph.add("load", INT, graph.add("batch", INT), detail=len(new_tensors) - 1)
        new_numbers.append(of)
        return graph.add("number", INT, detail=len(new_numbers) - 1)

    places: list[int] = []
    for op, type_, inputs, detail in program.nodes:
        if op == "batch" and op in by:
            place = value(by[op])
        else:
            place = graph.add(op, type_, *(places[each] for each in inputs), detail=detail)
            if op in by:
                place = graph.add("add", INT, place, value(by[op]))
        places.append(place)
    added = [TensorType(torch.int32, 1)] * (len(new_tensors) - len(tensors))
    added_numbers: list[Type] = [INT] * (len(new_numbers) - len(numbers))
    return Traced(
        Program(
            tuple(graph.nodes),
            (*program.tensors, *added),
            (*program.numbers, *added_numbers),
            None if program.score is None else places[program.score],
            None if program.mask is None else places[program.mask],
        ),
        tuple(new_tensors),
        tuple(new_numbers),
    )

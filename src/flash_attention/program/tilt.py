# SPDX-License-Identifier: Apache-2.0
"""Scores that a function tilts: it adds the distance from the query to the key, times a factor of
the head. ALiBi is one of these."""

from __future__ import annotations

from typing import NamedTuple

from flash_attention.program.nodes import FLOAT, KEY, QUERY, SCORE, Program


class Tilt(NamedTuple):
    """The factor of the distance."""

    factor: int | None  # a node that depends on the batch and the head alone, or None for 1
    sign: int


def tilt_of(program: Program) -> Tilt | None:
    """Return how the score function tilts scores, or None if it does anything else."""
    if program.score is None:
        return None
    node = program.nodes[program.score]
    if node.op not in ("add", "sub"):
        return None
    left, right = node.inputs
    if program.nodes[left].op == "score":
        return _factor(program, right, -1 if node.op == "sub" else 1)
    if program.nodes[right].op == "score" and node.op == "add":
        return _factor(program, left, 1)
    return None


def _factor(program: Program, index: int, sign: int) -> Tilt | None:
    """The factor of a node that is a distance times a factor."""
    node = program.nodes[index]
    if node.op == "neg":
        return _factor(program, node.inputs[0], -sign)
    if (of_distance := _sign_of_distance(program, index)) is not None:
        return Tilt(None, sign * of_distance)
    if node.op != "mul":
        return None
    for factor, distance in (node.inputs, node.inputs[::-1]):
        of_distance = _sign_of_distance(program, distance)
        if of_distance is not None and not program.depends[factor] & (QUERY | KEY | SCORE):
            return Tilt(factor, sign * of_distance)
    return None


def _sign_of_distance(program: Program, index: int) -> int | None:
    """1 for key - query, -1 for query - key, in floats."""
    node = program.nodes[index]
    if node.op == "neg":
        of_inner = _sign_of_distance(program, node.inputs[0])
        return None if of_inner is None else -of_inner
    if node.op != "cast" or node.type != FLOAT:
        return None
    inner = program.nodes[node.inputs[0]]
    if inner.op != "sub":
        return None
    left, right = (program.nodes[each].op for each in inner.inputs)
    return {("key", "query"): 1, ("query", "key"): -1}.get((left, right))

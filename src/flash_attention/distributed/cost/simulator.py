# SPDX-License-Identifier: Apache-2.0
"""Simulations: how long a schedule takes, how much it moves, and how much of that is hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flash_attention.distributed.cost.machine import Machine, Numbers
from flash_attention.distributed.cost.work import RoundWork, Shape
from flash_attention.distributed.heads import divides
from flash_attention.distributed.mask import Mask
from flash_attention.distributed.plan import Plan, grouped
from flash_attention.distributed.rounds import ALL_GATHER, HEADS, RING

FORWARD, BACKWARD = "forward", "backward"
PRODUCTS = {FORWARD: 1.0, BACKWARD: 2.5}  # FLOP as multiples of those of the forward pass
MERGED_BYTES = 10  # of an element of the output: read and written in float32, read in 16 bits
Rounds = Callable[[Plan, Mask], Iterable[RoundWork]]


@dataclass(frozen=True)
class Estimate:
    """One pass of a schedule. Times are in seconds, those of the slowest rank."""

    schedule: str
    mesh: tuple[int, ...]
    seconds: float
    computing: float
    communicating: float
    exposed: float  # time in which a rank waits for others
    sent_bytes: float  # by each rank, on average

    @property
    def hidden(self) -> float:
        """The part of the communication that runs while its rank computes."""
        return 1 - self.exposed / self.communicating if self.communicating else 1.0


class _Problem(NamedTuple):
    machine: Machine
    plan: Plan  # of the ranks that rows travel between
    mask: Mask
    shape: Shape
    pass_: str
    rounds: Rounds
    apart: int  # how far neighbours of the plan are from each other in the mesh

    def compute(self, work: RoundWork, own: bool) -> Numbers:
        """The time in which each rank computes a round."""
        rows = np.array(self.plan.rows, dtype=np.float64)
        length = rows if own else np.minimum(rows, np.maximum(work.rows, 1))
        flop = self.shape.flop(work.area) * PRODUCTS[self.pass_]
        causal = own and self.mask.right == 0
        time = self.machine.compute_seconds(self.pass_, self.shape.d, causal, flop, length)
        elements = rows * self.shape.batch * self.shape.heads * self.shape.d_v
        merging = elements * MERGED_BYTES / self.machine.copy_tb_s * 1e-12
        several = self.plan.ranks > 1
        return time + (merging if several and self.pass_ == FORWARD else 0)

    def travel(self, work: RoundWork) -> Numbers:
        """The time in which the keys and values of a round come to each rank."""
        places = np.arange(self.plan.ranks) * self.apart
        sent = self.shape.key_bytes(work.rows)
        return self.machine.link(places, work.source * self.apart, sent)


def simulate_schedule(
    machine: Machine,
    plan: Plan,
    mask: Mask,
    shape: Shape,
    schedule: str,
    exchanging: int,
    pass_: str,
    rounds: Rounds,
) -> Estimate:
    """Simulate one pass. Groups of `exchanging` ranks exchange heads first, if they are several;
    rows travel between the groups by the schedule."""
    outer = grouped(plan, exchanging) if exchanging > 1 else plan
    inside = shape.of_rank(exchanging) if exchanging > 1 else shape
    problem = _Problem(machine, outer, mask, inside, pass_, rounds, exchanging)
    found = (_all_gather if schedule == ALL_GATHER else _ring)(problem)
    mesh = (plan.ranks,) if exchanging in (1, plan.ranks) else (outer.ranks, exchanging)
    name = HEADS if exchanging == plan.ranks > 1 else schedule
    if exchanging == 1:
        return Estimate(name, mesh, *found)
    rows = max(plan.rows)
    moved = rows * shape.row_bytes(exchanging) * (exchanging - 1) / exchanging
    time = machine.exchange_seconds(exchanging, moved)
    seconds, computing, communicating, exposed, sent = found
    return Estimate(
        *(name, mesh, seconds + time, computing),
        *(communicating + time, exposed + time, sent + moved),
    )


def _ring(problem: _Problem) -> tuple[float, float, float, float, float]:
    """Follow all ranks through the rounds: the keys of the next round travel while this one is
    computed. In the backward pass gradients go back while the next one is, and half of the own
    round comes last."""
    ranks, back = problem.plan.ranks, problem.pass_ == BACKWARD
    posted, arrived, ended = np.zeros((3, ranks))
    computing, communicating, exposed, moved = np.zeros((4, ranks))
    returning, closing = np.zeros((2, ranks))
    for step, work in enumerate(problem.rounds(problem.plan, problem.mask)):
        travel = problem.travel(work)
        both = np.maximum(posted, posted[work.source])
        arrived = np.where(travel > 0, np.maximum(both, arrived) + travel + returning, arrived)
        started = np.where(travel > 0, np.maximum(ended, arrived), ended)
        exposed += started - ended
        time = problem.compute(work, own=step == 0)
        computing += time
        if back and step == 0 and ranks > 1:
            closing = time = time / 2
        posted, ended = started, started + time
        communicating += travel * (2 if back else 1)
        moved += problem.shape.key_bytes(work.rows) * (2 if back else 1)
        returning = travel if back else returning
    tail = np.maximum(returning - closing, 0)  # of the gradients of the last round
    return (
        float((ended + closing + tail).max()),
        float(computing.max()),
        float(communicating.max()),
        float((exposed + tail).max()),
        float(moved.mean()),
    )


def _all_gather(problem: _Problem) -> tuple[float, float, float, float, float]:
    """Add up what comes from all ranks, and what all of it takes to compute."""
    works = list(problem.rounds(problem.plan, problem.mask))
    area, rows = (np.sum([getattr(w, name) for w in works], axis=0) for name in ("area", "rows"))
    whole = RoundWork(works[0].source, area, rows)
    time = float(problem.compute(whole, own=True).max())
    sent = float(problem.shape.key_bytes(rows).mean())
    near = np.zeros(problem.plan.ranks)
    far = np.zeros(problem.plan.ranks)
    places = np.arange(problem.plan.ranks) * problem.apart // problem.machine.node
    for work in works:
        coming = problem.shape.key_bytes(work.rows)
        inside = places == places[work.source]
        near += np.where(inside, coming, 0)
        far += np.where(inside, 0, coming)
    messages = max(1, problem.plan.ranks - 1)
    links = zip((problem.machine.near, problem.machine.far), (near, far), strict=True)
    travel = float(max(link.seconds(each, messages).max() for link, each in links))
    if problem.pass_ == BACKWARD:
        travel, sent = 2 * travel, 2 * sent
    return time + travel, time, travel, travel, sent


def ways(plan: Plan, shape: Shape, node: int) -> list[tuple[str, int]]:
    """The schedules that are possible: names, and how many ranks exchange heads."""
    found = [(RING, 1)] if plan.ranks == 1 else [(RING, 1), (ALL_GATHER, 1)]
    for exchanging in range(2, plan.ranks + 1):
        near = exchanging <= node or exchanging == plan.ranks
        whole = plan.ranks % exchanging == 0
        if near and whole and divides(shape.heads, shape.heads_k, exchanging):
            found.append((RING, exchanging))
    return found

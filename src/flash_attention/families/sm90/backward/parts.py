# SPDX-License-Identifier: Apache-2.0
"""Parts of the work that share one workspace of dS."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flash_attention.call.problem import Problem
from flash_attention.errors import UnsupportedError
from flash_attention.families.backward_args import STAT_BLOCK

ELEMENT_BYTES = 2
MIB = 1 << 20
SIDE_BY_SIDE = 4  # heads of a part whose tiles differ in length


@dataclass(frozen=True)
class Part:
    """Some heads of k, counted over all sequences, and some of their keys."""

    part_head: int
    part_heads: int
    part_key: int
    part_keys: int

    @property
    def values(self) -> dict[str, int]:
        """The part as kernel arguments."""
        return asdict(self)


@dataclass(frozen=True)
class Parts:
    """All parts of a problem in the order in which they run, and the bytes that they share."""

    parts: tuple[Part, ...]
    workspace_bytes: int

    @property
    def of_keys(self) -> bool:
        """Whether a part has only some of the keys of its heads, so that shares of dQ add up."""
        return self.parts[0].part_keys < self.parts[-1].part_key + self.parts[-1].part_keys


def all_work(problem: Problem) -> Parts:
    """Return one part with all of the work, which needs no workspace."""
    return Parts((Part(0, problem.batch * problem.heads_k, 0, problem.seq_k),), 0)


def split_work(problem: Problem, workspace_bytes: int, stored: tuple[str, ...] = ("dS",)) -> Parts:
    """Split the work into as few parts as a workspace of this size allows: by heads, or by ranges
    of keys as well. `stored` names what it holds of every score.

    With a causal mask the tiles of a head differ in length, and the first ones see twice as many
    queries as the average. If only few heads fit, parts have a range of keys of several heads,
    whose tiles differ less.
    """
    heads = problem.batch * problem.heads_k
    size = ELEMENT_BYTES * len(stored)
    column = problem.heads_per_kv * _in_blocks(problem.seq_q) * size  # of one key
    of_a_head = column * _in_blocks(problem.seq_k)
    together = min(heads, SIDE_BY_SIDE) if problem.causal else 1
    if together * of_a_head <= workspace_bytes:
        count = -(-heads // (-(-heads // (workspace_bytes // of_a_head))))
        parts = [
            Part(first, min(count, heads - first), 0, problem.seq_k)
            for first in range(0, heads, count)
        ]
        return Parts(tuple(parts), count * of_a_head)
    while together > 1 and workspace_bytes // (together * column) < STAT_BLOCK:
        together -= 1
    most = workspace_bytes // (together * column) // STAT_BLOCK * STAT_BLOCK
    if most == 0:
        raise UnsupportedError(
            f"{' and '.join(stored)} of {STAT_BLOCK} keys and {problem.seq_q} queries of"
            f" {problem.heads_per_kv} heads takes {-(-column * STAT_BLOCK // MIB)} MiB, and the"
            f" workspace has {workspace_bytes // MIB}: set FLASH_ATTENTION_WORKSPACE_MIB to at"
            " least that"
        )
    ranges = -(-problem.seq_k // most)
    keys = _in_blocks(-(-problem.seq_k // ranges))
    return Parts(
        tuple(
            Part(head, min(together, heads - head), first, min(keys, problem.seq_k - first))
            for head in range(0, heads, together)
            for first in range(0, problem.seq_k, keys)
        ),
        together * column * keys,
    )


def _in_blocks(rows: int) -> int:
    return -(-rows // STAT_BLOCK) * STAT_BLOCK

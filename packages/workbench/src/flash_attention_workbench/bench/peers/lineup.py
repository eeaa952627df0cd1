# SPDX-License-Identifier: Apache-2.0
"""Which peers there are, and which of them can take a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch.nn.attention import SDPBackend

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.choices import checked_choice
from flash_attention_workbench.bench.peers.fa3 import flash_attention_3
from flash_attention_workbench.bench.peers.flex import flex
from flash_attention_workbench.bench.peers.torch_sdpa import flash_attention_2, sdpa
from flash_attention_workbench.bench.timing import Contender

PEERS = ("fa3", "cudnn", "fa2", "flex", "efficient", "sdpa_math")
DEFAULT_PEERS = PEERS[:3]
Prepare = Callable[[str, Case], Contender]


@dataclass(frozen=True)
class Lineup:
    """The peers that can take a problem, and why the others cannot."""

    contenders: tuple[Contender, ...]
    missing: Mapping[str, str]


def line_up(names: Sequence[str], case: Case, *, fa3: Path | None = None) -> Lineup:
    """Peers for a case, each run once; `fa3` is FA3's library."""
    ways: tuple[Prepare, ...] = (
        partial(flash_attention_3, fa3),
        partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        flash_attention_2,
        flex,
        partial(sdpa, SDPBackend.EFFICIENT_ATTENTION),
        partial(sdpa, SDPBackend.MATH),
    )
    peers = dict(zip(PEERS, ways, strict=True))
    present, missing = [], {}
    for name in checked_names(names):
        try:
            contender = peers[name](name, case)
            contender.run()
        except (UnsupportedError, RuntimeError, OSError) as reason:
            missing[name] = first_lines(reason)
        else:
            present.append(contender)
    return Lineup(tuple(present), missing)


def first_lines(reason: Exception) -> str:
    """The first lines of an error and of its cause."""
    causes = (reason, reason.__cause__)
    return ": ".join(str(cause).partition("\n")[0] for cause in causes if cause)


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """`names`, if there are peers of these names."""
    return tuple(checked_choice("peer", name, PEERS) for name in names)

# SPDX-License-Identifier: Apache-2.0
"""Agreement: before anything else is sent, ranks compare a digest of what they were asked for."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from flash_attention.distributed.transport import backends
from flash_attention.errors import UnsupportedError

REFUSED = "refused"  # the fact that a rank states if its own arguments are wrong


def agree(groups: Sequence[ProcessGroup], facts: Mapping[str, str]) -> None:
    """Raise UnsupportedError on all ranks if facts differ between them, with the ranks that do.

    `groups` are those of a mesh, from its last dimension to its first.
    """
    text = json.dumps(facts, sort_keys=True)
    own = hashlib.sha256(text.encode()).digest()
    digests = torch.tensor(list(own), dtype=torch.uint8)[None]
    for group in groups:
        digests = torch.cat(_gathered(group, digests))
    if REFUSED not in facts and bool((digests == digests[0]).all()):
        return
    every: list[Any] = [facts]
    for group in groups:
        parts: list[Any] = [None] * group.size()
        dist.all_gather_object(parts, every, group=group)
        every = [each for part in parts for each in part]
    raise UnsupportedError(_differences(every))


def _gathered(group: ProcessGroup, tensor: Tensor) -> list[Tensor]:
    """Gather small tensors: through the CPU if the group can, so that no stream is waited for."""
    kinds = backends(group)
    device = "cpu" if "cpu" in kinds else next(iter(kinds))
    sent = tensor.to(device)
    found = [torch.empty_like(sent) for _ in range(group.size())]
    dist.all_gather(found, sent, group=group)
    return [part.cpu() for part in found]


def _differences(every: Sequence[Mapping[str, str]]) -> str:
    refused = {rank: facts[REFUSED] for rank, facts in enumerate(every) if REFUSED in facts}
    if refused:
        said = "; ".join(f"rank {rank}: {text}" for rank, text in refused.items())
        return f"{_ranks(refused)} cannot take part, so nothing was sent. {said}"
    found = []
    for name in sorted(set().union(*every)):
        values = [facts.get(name, "nothing") for facts in every]
        (usual, _), *others = Counter(values).most_common()
        for value, _ in others:
            ranks = [rank for rank, each in enumerate(values) if each == value]
            found.append(f"{_ranks(ranks)}: {name} is {value}, on the other ranks {usual}")
    return f"ranks differ, and nothing was sent. {'; '.join(found)}. Pass the same on all ranks"


def _ranks(ranks: Sequence[int] | Mapping[int, str]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"

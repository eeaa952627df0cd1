# SPDX-License-Identifier: Apache-2.0
"""A small transformer that trains in one process or in one of several, each with a part of every
batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from flash_attention import attention

STEPS, BATCH, LENGTH, WORDS, WIDTH, HEADS, HEADS_K = 4, 4, 24, 50, 64, 4, 2
LIMIT = timedelta(seconds=60)  # of a collective whose other process is gone


class Layer(nn.Module):
    """Attention with grouped heads, then a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH // HEADS * (HEADS + 2 * HEADS_K))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.sinks = nn.Parameter(torch.zeros(HEADS))
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (-1, WIDTH // HEADS))
        q, k, v = heads.split((HEADS, HEADS_K, HEADS_K), dim=2)
        x = x + self.out(attention(q, k, v, causal=True, sinks=self.sinks).flatten(2))
        fed: Tensor = self.feed(x)
        return x + fed


def new_model() -> nn.Sequential:
    """The model before training, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), Layer(), Layer(), nn.Linear(WIDTH, WORDS))


def train(model: nn.Module, rank: int = 0, processes: int = 1) -> None:
    """Train with the part of every batch that belongs to a process."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    drawn = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        words = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=drawn)
        mine = words.chunk(processes)[rank]
        logits = model(mine[:, :-1])
        cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def replicated(model: nn.Sequential) -> nn.Module:
    """Every process has all parameters."""
    return DistributedDataParallel(model)


def sharded(model: nn.Sequential) -> nn.Module:
    """Every process has a share of each parameter, and gathers the others when it needs them."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


PARALLEL: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "DDP": replicated,
    "FSDP": sharded,
}


def whole(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Parameters with the shares of all processes."""
    return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().clone() for p in parameters]


def main(store: str, output: str, rank: int, processes: int) -> None:
    """Train in one of several processes, in every way. The first one saves the parameters."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=processes, timeout=LIMIT
    )
    trained = {}
    for name, distribute in PARALLEL.items():
        model = distribute(new_model())
        train(model, rank, processes)
        trained[name] = whole(list(model.parameters()))
    if rank == 0:
        torch.save(trained, output)
    dist.destroy_process_group()

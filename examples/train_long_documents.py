# SPDX-License-Identifier: Apache-2.0
"""Train a small model on packed documents whose rows are divided among processes.

Run it with `torchrun --nproc-per-node 4 examples/train_long_documents.py`, on GPUs if there are as
many, else on the CPU, or with `python examples/train_long_documents.py` in one process. The losses
are the same. Every document is written in two words of its own: to go on with it, the model has to
look back at which words there are, in rows that other processes may hold.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy

from flash_attention.distributed import Plan, attention, make_plan, position_ids, shard

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # what torchrun sets for several
ALONE |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
WORDS, WIDTH, HEADS, STEPS, TOTAL, LONGEST = 32, 64, 4, 40, 512, 200


def start() -> DeviceMesh:
    """Join the processes of torchrun, or be alone."""
    for name, alone in ALONE.items():
        os.environ.setdefault(name, alone)
    ranks = int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= ranks
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    return init_device_mesh("cuda" if on_gpus else "cpu", (ranks,))


def documents(drawn: torch.Generator) -> tuple[list[int], Tensor, Tensor]:
    """Lengths that fill a batch, their words, and the word that follows each. All processes draw
    the same."""
    lengths: list[int] = []
    while (left := TOTAL - sum(lengths)) > 0:
        lengths.append(min(left, int(torch.randint(20, LONGEST, (), generator=drawn))))
    words, following = [], []
    for length in lengths:
        own = torch.randint(WORDS, (2,), generator=drawn)
        document = own[torch.randint(2, (length + 1,), generator=drawn)]
        words.append(document[:-1])
        following.append(document[1:])
    return lengths, torch.cat(words), torch.cat(following)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of (rows, heads, d) by the position of each row in its document."""
    half = x.shape[-1] // 2
    frequencies = 100.0 ** (-torch.arange(half, device=x.device) / half)
    angles = positions[:, None, None] * frequencies
    a, b = x.split(half, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class Layer(nn.Module):
    """Attention over all rows of a document, then a feed-forward network over the own ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, positions: Tensor, plan: Plan, mesh: DeviceMesh) -> Tensor:
        heads = self.project(self.norms[0](x)).unflatten(-1, (3 * HEADS, -1))
        q, k, v = heads.split(HEADS, 1)
        q, k = rotated(q, positions), rotated(k, positions)
        q, k, v = (t.to(torch.bfloat16 if x.is_cuda else x.dtype) for t in (q, k, v))
        seen = attention(q, k, v, mesh, plan=plan, causal=True)
        x = x + self.out(seen.flatten(1).to(x.dtype))
        fed: Tensor = self.feed(self.norms[1](x))
        return x + fed


def main() -> None:
    mesh = start()
    device, first = mesh.device_type, dist.get_rank() == 0
    torch.manual_seed(0)
    embed, layers, head = nn.Embedding(WORDS, WIDTH), [Layer(), Layer()], nn.Linear(WIDTH, WORDS)
    model = nn.ModuleList([embed, *layers, head]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    drawn = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        lengths, words, following = documents(drawn)
        plan = make_plan(lengths, mesh.size(), causal=True)
        positions = position_ids(plan, mesh, device)
        x = embed(shard(words.to(device), plan, mesh, 0))
        for layer in layers:
            x = layer(x, positions, plan, mesh)
        wanted = shard(following.to(device), plan, mesh, 0)
        loss = cross_entropy(head(x), wanted, reduction="sum") / TOTAL
        optimizer.zero_grad()
        loss.backward()
        # The loss of a process is that of its rows: sums over processes are those of all rows.
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        dist.all_reduce(total := loss.detach())
        losses.append(float(total))
    if first:
        print(f"the last plan: {plan}")
        print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after {STEPS} steps")
    assert losses[-1] < 0.6 * losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

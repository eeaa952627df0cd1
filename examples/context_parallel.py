# SPDX-License-Identifier: Apache-2.0
"""Train a model of transformers with torch's context_parallel, its attention computed here.

Run it with `torchrun --nproc-per-node 2 examples/context_parallel.py`, on GPUs if there are as
many, else on the CPU, or with `python examples/context_parallel.py` in one process. The step is the
one that accelerate takes: buffers are sharded in place for the time of a block.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from flash_attention.distributed import serve_context_parallel

alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # what torchrun sets for several
alone |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
for name, value in alone.items():
    os.environ.setdefault(name, value)
ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
on_gpus = torch.cuda.device_count() >= ranks
if on_gpus:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo")
device = "cuda" if on_gpus else "cpu"
mesh = init_device_mesh(device, (ranks,))

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_implementation="sdpa",
)
model = LlamaForCausalLM(config).to(device, torch.bfloat16 if on_gpus else torch.float32)


def without_mask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """A mask tensor would be one of this rank's rows; the mask is causal over all of them."""
    return args, kwargs | {"attention_mask": None, "is_causal": True}


for name, module in model.named_modules():
    if name.endswith("self_attn"):
        module.register_forward_pre_hook(without_mask, with_kwargs=True)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
length, losses = 256, []
text = torch.randint(64, (2, 16), device=device).repeat(1, length // 16 + 1)
for _ in range(10):
    words, following = text[:, :length].clone(), text[:, 1 : length + 1].clone()
    positions = torch.arange(length, device=device)[None].clone()
    buffers = [words, following, positions]
    with (
        context_parallel(
            mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set(buffers)
        ),
        serve_context_parallel(strict=True) as served,
    ):
        logits = model(words, position_ids=positions, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1).float(), following.flatten(), reduction="sum")
        loss = loss / (2 * length)
        loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # the sum over the rows of all ranks
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total := loss.detach())
    losses.append(float(total))
if rank == 0:
    print(f"{ranks} processes, {served.here} calls of attention in a step were computed here")
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} after 10 steps")
assert losses[-1] < losses[0]
dist.destroy_process_group()

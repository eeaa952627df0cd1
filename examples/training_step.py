# SPDX-License-Identifier: Apache-2.0
"""A training step: a layer of attention inside `torch.compile`, with gradients that are repeatable.

Run it with `python examples/training_step.py`. Without a GPU, torch computes on the CPU.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import flash_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
batch, seq, width, heads, heads_k = 4, 2048, 1024, 8, 2
if device == "cpu":
    batch, seq, width, heads = 2, 64, 128, 4
d = width // heads


class Layer(nn.Module):
    """Grouped-query attention under a causal mask. Weights are float32, the attention bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, (heads + 2 * heads_k) * d, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.qkv(x).bfloat16().unflatten(-1, (-1, d))
        q, k, v = rows.split((heads, heads_k, heads_k), dim=2)
        o = flash_attention.attention(q, k, v, causal=True, deterministic=True)
        result: torch.Tensor = self.out(o.flatten(2).to(x.dtype))
        return result


def train(steps: int) -> tuple[list[float], torch.Tensor]:
    """The losses of some steps, and a gradient of the last."""
    torch.manual_seed(0)
    layer = Layer().to(device)
    step = torch.compile(layer, fullgraph=True) if device == "cuda" else layer
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    x, target = torch.randn(2, batch, seq, width, device=device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mse_loss(step(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert layer.qkv.weight.grad is not None
    return losses, layer.qkv.weight.grad


losses, gradient = train(5)
again, same_gradient = train(5)
print(f"losses on {device}: {', '.join(f'{loss:.4f}' for loss in losses)}")
assert losses[-1] < losses[0]
assert losses == again
assert torch.equal(gradient, same_gradient)
print("a second run has the same losses and gradients, to the last bit")

# SPDX-License-Identifier: Apache-2.0
"""The block of docs/masks.md that has a picture of every mask with a name."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.render.blocks import wrap
from flash_attention import Function, masks
from flash_attention.call.problem import Problem
from flash_attention_workbench.explain.user_function import MaskView

DOCUMENT = Path("docs/masks.md")
PICTURES = "pictures"
SIZE, BESIDE, WIDTH = 12, 4, 24  # positions, pictures in a line, characters of each

IDS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2])
IMAGES = torch.tensor([-1, -1, 0, 0, 0, 0, -1, -1, 1, 1, 1, -1])
PARENTS = [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6]
SHOWN: dict[str, masks.Mask] = {
    "causal()": masks.causal(),
    "window(3, 1)": masks.window(3, 1),
    "prefix_lm(4)": masks.prefix_lm(4),
    "documents(ids)": masks.documents(IDS),
    "sink_window(2, 3)": masks.sink_window(2, 3),
    "dilated(3)": masks.dilated(3),
    "neighbourhood(4, 1)": masks.neighbourhood(4, 1),
    "image_prefix(images)": masks.image_prefix(IMAGES),
    "tree(parents)": masks.tree(PARENTS),
    "causal() & dilated(3)": masks.causal() & masks.dilated(3),
    "~window(1, 1)": ~masks.window(1, 1),
    "causal() & documents": masks.causal() & masks.documents(IDS),
}


def pictures_block() -> str:
    """Pictures of masks: a line is a query, a column a key, # where the query sees the key."""
    sizes = (1, SIZE, SIZE, 1, 1, 8, 8)
    problem = Problem(*sizes, torch.bfloat16, 1.0)
    drawn = [
        (name, *MaskView(Function(mask=mask), problem).picture()) for name, mask in SHOWN.items()
    ]
    lines: list[str] = []
    for first in range(0, len(drawn), BESIDE):
        some = zip(*drawn[first : first + BESIDE], strict=True)
        lines += ["", *("".join(each.ljust(WIDTH) for each in row).rstrip() for row in some)]
    return wrap(PICTURES, ("```text", *lines[1:], "```"))

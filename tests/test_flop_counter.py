# SPDX-License-Identifier: Apache-2.0
"""FLOP are counted whichever is imported first, the counter or this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.children import Child, script, wait_for

FIRST = (
    "from torch.utils.flop_counter import FlopCounterMode\nimport flash_attention",
    (
        "import sys, flash_attention\n"
        "assert 'torch.utils.flop_counter' not in sys.modules\n"
        "from torch.utils.flop_counter import FlopCounterMode"
    ),
    (
        "import importlib, flash_attention, torch.utils.flop_counter as counter\n"
        "FlopCounterMode = importlib.reload(counter).FlopCounterMode"
    ),
)
COUNT = """
import torch
q, k, v = (torch.randn(2, 8, 3, 16, requires_grad=True) for _ in range(3))
with FlopCounterMode(display=False) as counter:
    flash_attention.attention(q, k, v).sum().backward()
    flash_attention.attention(
        *(t[0] for t in (q, k, v)),
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.tensor([0, 2, 8]).int()),
        max_seqlen_q=6, max_seqlen_k=6,
    )
counts = {str(name).split(".")[-1]: n for name, n in counter.get_flop_counts()["Global"].items()}
dense, packed = 2 * 3 * 8 * 8, 3 * (2 * 2 + 6 * 6)  # pairs of a query and a key
wanted = {"dense": dense * 4 * 16, "dense_backward": dense * 10 * 16, "varlen": packed * 4 * 16}
assert counts == wanted, counts
"""


def test_flop_are_counted_whichever_is_first(tmp_path: Path) -> None:
    """Each program runs in a process that has imported torch and nothing of ours."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    children = []
    for number, first in enumerate(FIRST):
        program = tmp_path / f"{number}.py"
        program.write_text(first + COUNT)
        said = tmp_path / f"{number}.txt"
        children.append(Child(said, script, str(program), environment=environment))
    wait_for(children, 60)
    assert [(child.code, child.said) for child in children] == [(0, "")] * len(FIRST)

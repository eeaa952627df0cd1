# SPDX-License-Identifier: Apache-2.0
"""FLOP are counted whichever is imported first, the counter or this package."""

from __future__ import annotations

import os
import subprocess
import sys

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


FORK = """
import os, sys
import torch
for program in sys.argv[1:]:  # each in a process that has imported torch and nothing of ours
    if (child := os.fork()) == 0:
        exec(program)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, program
"""


def test_flop_are_counted_whichever_is_first() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    programs = [first + COUNT for first in FIRST]
    subprocess.run([sys.executable, "-c", FORK, *programs], env=environment, check=True)

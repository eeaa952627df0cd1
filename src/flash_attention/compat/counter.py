# SPDX-License-Identifier: Apache-2.0
"""How many calls under other libraries' names were computed here, to see that a switch is on."""

from __future__ import annotations

from collections import Counter

import torch

calls: Counter[str] = Counter()
"""The forward passes of "transformers", and of "flash_attn": of any version, of the forks that
serving engines have, and of torch's flash attention. Those in compiled functions are not counted.
"""


def count(library: str) -> None:
    """Count a call."""
    if not torch.compiler.is_compiling():
        calls[library] += 1

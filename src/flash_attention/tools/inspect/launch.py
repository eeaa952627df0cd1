# SPDX-License-Identifier: Apache-2.0
"""Launches one kernel once, for a profiler to watch:

python -m flash_attention.tools.inspect.launch CONFIG BATCH SEQ HEADS [causal]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from flash_attention.forward import forward
from flash_attention.kernel_configs import KernelConfig, as_kernel_config
from flash_attention.reference.judge import generate_qkvo

CAUSAL = "causal"


def program(config: KernelConfig, shape: tuple[int, int, int], causal: bool) -> list[str]:
    """What Python is to run: this module with its arguments."""
    words = [config.short_form(), *map(str, shape), *([CAUSAL] if causal else [])]
    return ["-m", "flash_attention.tools.inspect.launch", *words]


def main(arguments: Sequence[str]) -> None:
    form, batch, seq_len, heads, *mask = arguments
    config = as_kernel_config(form, n_heads=int(heads))
    shape = (int(batch), int(seq_len), int(heads), config.d_head)
    forward(config, *generate_qkvo(*shape, config.dtype, "cuda"), causal=mask == [CAUSAL])
    torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])

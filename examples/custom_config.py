# SPDX-License-Identifier: Apache-2.0
"""A kernel of one's own choice: change a field of a config, see what it costs, and run it.

Run it with `python examples/custom_config.py`. Without a GPU the kernel runs in the emulator, which
also counts what it does.
"""

from dataclasses import replace

import torch

import flash_attention
from flash_attention import DType, FlashForwardKernelConfig
from flash_attention.kernel_configs import parse_kernel_config
from flash_attention.testing import check_output, generate_qkv

device = "cuda" if torch.cuda.is_available() else "cpu"

# The thirteen fields of an sm_80 kernel; its short form is what `--config` takes.
config = FlashForwardKernelConfig(
    dtype=DType.FP16,
    d_head=64,
    B_r=64,
    B_c=32,
    n_warps=4,
    async_copy=True,
    eager_load_blocks=True,
    swizzled=False,
    Q_mma_load_K_tiles=2,
    K_mma_load_K_tiles=2,
    V_mma_load_K_tiles=2,
    mma_double_buffer_loads=False,
    optimized_softmax=True,
)
swizzled = replace(config, swizzled=True)
print(swizzled.short_form())
assert parse_kernel_config(swizzled.short_form()) == swizzled

# An invalid config says which rule it breaks.
try:
    replace(config, n_warps=8).check()
except flash_attention.KernelConfigError as error:
    print(f"refused: {error}")

q, k, v = (t.to(device) for t in generate_qkv(1, 128, 1, 64, config.dtype))
out = flash_attention.forward(swizzled, q, k, v)  # compiled at first use
check = check_output(out, q, k, v)
print(f"on {device}: {check}")
assert check.ok

# What the swizzle is for, counted without a GPU.
for one in (config, swizzled):
    counters = flash_attention.emulate(one, q.cpu(), k.cpu(), v.cpu()).counters
    print(f"swizzled={one.swizzled}: {counters.conflicts:,} bank conflicts")

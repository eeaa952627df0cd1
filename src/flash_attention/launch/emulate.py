# SPDX-License-Identifier: Apache-2.0
"""emulate: a kernel on CPU tensors, with what the emulator found and counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from flash_attention.arch import get_arch
from flash_attention.call.call import call_of, with_keywords
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig
from flash_attention.families.registry import check_config_type
from flash_attention.launch.device import CPU
from flash_attention.launch.emulation import Emulation, Settings, emulate_plan, store
from flash_attention.launch.plan import Plan


@with_keywords
def emulate(
    kernel_cfg: GivenConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None = None,
    *,
    arch: str | None = None,
    schedule: str = "lockstep",
    seed: int = 0,
    checks: bool = True,
    **keywords: Any,
) -> Emulation:
    """Run a kernel on CPU tensors in the emulator, and report errors and counters.

    - `kernel_cfg`, `q`, `k`, `v`, `o` and the keywords: as in `forward`, but on the CPU.
    - `arch`: the architecture to compile for, such as "sm_90". By default it is the oldest one that
      the config runs on.
    - `schedule`: the order in which warps advance, "lockstep", "depth-first" or "random".
    - `seed`: the seed of a random schedule.
    - `checks`: look for errors and count. Without checks a run takes about half the time.

    Returns an Emulation. Raises UnsupportedError and KernelConfigError as `forward` does, and
    LaunchError if the kernel deadlocks.
    """
    settings = Settings(schedule, seed, checks)
    call = call_of("emulate", q, k, v, o, keywords)
    if kernel_cfg is None:
        check_config_type(kernel_cfg)
    plan = Plan(call, kernel_cfg, None if arch is None else get_arch(arch))
    if plan.device_index != CPU:
        raise UnsupportedError(
            f"q is on {q.device}; the emulator takes CPU tensors, move them with q.cpu(), or call"
            " forward to run on the GPU"
        )
    emulation = emulate_plan(plan, call, settings)
    return emulation if o is None else replace(emulation, output=store(emulation.output, o))

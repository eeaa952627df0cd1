# SPDX-License-Identifier: Apache-2.0
"""A PTX emulator on NumPy. It runs kernels without a GPU and finds races and missing waits.

`UserKernel` runs a kernel of CUDA or PTX text with NumPy arrays, and `assert_clean` does so in a
test. `load_program` and `run` are what they are made of. Each is imported when it is first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ptx_emulator.choices import SCHEDULES
from ptx_emulator.errors import (
    CompileError,
    DeadlockError,
    EmulatorError,
    LaunchError,
    PtxError,
    RefusedKernelError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from ptx_emulator.machine.async_copies.tensor_map import TensorMap
    from ptx_emulator.machine.launch.counters import Counters
    from ptx_emulator.machine.launch.findings import Finding
    from ptx_emulator.machine.memory.textures import Texture
    from ptx_emulator.machine.storage.global_memory import GlobalMemory
    from ptx_emulator.program.program import Program, load_program
    from ptx_emulator.running import run
    from ptx_emulator.second_look import RunResult
    from ptx_emulator.testing import assert_clean
    from ptx_emulator.user_kernel.debugging import Debug
    from ptx_emulator.user_kernel.kernel import UserKernel, UserRun
    from ptx_emulator.user_kernel.values import Empty, Pointer, Struct, Tensor

__all__ = [
    "SCHEDULES",
    "CompileError",
    "Counters",
    "DeadlockError",
    "Debug",
    "Empty",
    "EmulatorError",
    "Finding",
    "GlobalMemory",
    "LaunchError",
    "Pointer",
    "Program",
    "PtxError",
    "RefusedKernelError",
    "RunResult",
    "Struct",
    "Tensor",
    "TensorMap",
    "Texture",
    "UnsupportedError",
    "UserKernel",
    "UserRun",
    "assert_clean",
    "load_program",
    "run",
]

_HOMES = {
    "Counters": "machine.launch.counters",
    "Debug": "user_kernel.debugging",
    "Finding": "machine.launch.findings",
    "GlobalMemory": "machine.storage.global_memory",
    "Program": "program.program",
    "RunResult": "second_look",
    "TensorMap": "machine.async_copies.tensor_map",
    "Texture": "machine.memory.textures",
    "assert_clean": "testing",
    "load_program": "program.program",
    "run": "running",
    **dict.fromkeys(("UserKernel", "UserRun"), "user_kernel.kernel"),
    **dict.fromkeys(("Empty", "Pointer", "Struct", "Tensor"), "user_kernel.values"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

# SPDX-License-Identifier: Apache-2.0
"""A PTX emulator on NumPy. It runs kernels without a GPU and finds races and missing waits.

`UserKernel` runs a kernel of CUDA or PTX text with NumPy arrays. `load_program` and `run` are what
it is made of.
"""

from ptx_emulator.errors import (
    CompileError,
    DeadlockError,
    EmulatorError,
    LaunchError,
    PtxError,
    RefusedKernelError,
    UnsupportedError,
)
from ptx_emulator.machine.async_copies.tensor_map import TensorMap
from ptx_emulator.machine.launch.counters import Counters
from ptx_emulator.machine.launch.findings import Finding
from ptx_emulator.machine.scheduler import SCHEDULES
from ptx_emulator.machine.storage.global_memory import GlobalMemory
from ptx_emulator.program.program import Program, load_program
from ptx_emulator.run import RunResult, run
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
    "UnsupportedError",
    "UserKernel",
    "UserRun",
    "load_program",
    "run",
]

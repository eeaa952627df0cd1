# SPDX-License-Identifier: Apache-2.0
"""A PTX emulator on NumPy. It runs kernels without a GPU and finds races and missing waits.

It does not import the rest of the package.
"""

from flash_attention.emulator.errors import (
    DeadlockError,
    EmulatorError,
    PtxError,
    RefusedKernelError,
)
from flash_attention.emulator.machine.counters import Counters
from flash_attention.emulator.machine.findings import Finding
from flash_attention.emulator.machine.global_memory import GlobalMemory
from flash_attention.emulator.machine.scheduler import SCHEDULES
from flash_attention.emulator.machine.tensor_map import TensorMap
from flash_attention.emulator.program.program import Program, load_program
from flash_attention.emulator.run import RunResult, run

__all__ = [
    "SCHEDULES",
    "Counters",
    "DeadlockError",
    "EmulatorError",
    "Finding",
    "GlobalMemory",
    "Program",
    "PtxError",
    "RefusedKernelError",
    "RunResult",
    "TensorMap",
    "load_program",
    "run",
]

# SPDX-License-Identifier: Apache-2.0
"""Launches of kernels as files describe them, one after the other, for compute-sanitizer.

It calls the driver by ctypes, so that the process starts fast and asks for nothing besides the
launches. It prints what the driver said of each, and ends where the context is lost.

compute-sanitizer --tool racecheck python benchmarks/sanitizer_launch.py LAUNCH.json...
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a CUtensorMap
FLOAT16, SWIZZLES = 6, {0: 0, 32: 1, 64: 2, 128: 3}  # of CUtensorMapDataType, CUtensorMapSwizzle
MAX_DYNAMIC_SMEM, CLUSTER_DIMENSION, BLOCKING_SYNC = 8, 4, 4
SMEM_WITHOUT_ASKING = 48 * 1024
REFUSALS = ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_CLUSTER_SIZE")  # nothing was launched
PAUSE_S = 0.05  # in which a tool prints what it found


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 6),
        ("smem", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


class DriverError(Exception):
    """A call of the driver that failed; its text is the name of the error."""


class Driver:
    """libcuda, whose functions raise DriverError."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(name))
            raise DriverError((name.value or b"?").decode())

    def start(self) -> None:
        """Take the context of the first GPU. A thread that waits for a kernel sleeps."""
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxSetFlags_v2", 0, BLOCKING_SYNC)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def kernel(self, cubin: bytes, entry: str) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), cubin)
        self("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def buffer(self, size: int, data: str | None) -> int:
        """Memory of the GPU, with these bytes in it or with nothing written to it."""
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        if data is not None:
            self("cuMemcpyHtoD_v2", address, bytes.fromhex(data), ctypes.c_size_t(size))
        return address.value

    def tensor_map(self, how: Mapping[str, Any], address: int) -> Any:
        """A CUtensorMap of 16-bit floats, aligned as the driver asks."""
        rank = len(how["dims"])
        room = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
        at = -(-ctypes.addressof(room) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        self(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(at),
            FLOAT16,
            rank,
            ctypes.c_uint64(address),
            (ctypes.c_uint64 * rank)(*how["dims"]),
            (ctypes.c_uint64 * rank)(*how["strides"]),
            (ctypes.c_uint32 * rank)(*how["box"]),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,
            SWIZZLES[how["swizzle"]],
            0,
            0,
        )
        return (ctypes.c_ubyte * MAP_BYTES).from_buffer(room, at - ctypes.addressof(room))

    def launch(self, function: ctypes.c_void_p, how: Mapping[str, Any], values: list[Any]) -> None:
        """Launch and wait for the end."""
        if how["smem"] > SMEM_WITHOUT_ASKING:
            self("cuFuncSetAttribute", function, MAX_DYNAMIC_SMEM, how["smem"])
        config = Config((ctypes.c_uint * 6)(*how["grid"], *how["block"]), how["smem"])
        if how["cluster"] is not None:
            cluster = Attribute(CLUSTER_DIMENSION, 0, (ctypes.c_uint * 16)(*how["cluster"]))
            config.attributes, config.count = ctypes.pointer(cluster), 1
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        self("cuCtxSynchronize")


def run(how: Mapping[str, Any], driver: Driver) -> None:
    function = driver.kernel(Path(how["cubin"]).read_bytes(), how["entry"])
    buffers = [driver.buffer(buffer["size"], buffer["data"]) for buffer in how["buffers"]]
    values: list[Any] = []
    for argument in how["arguments"]:
        if "box" in argument:
            values.append(driver.tensor_map(argument, buffers[argument["buffer"]]))
        elif "buffer" in argument:
            values.append(ctypes.c_uint64(buffers[argument["buffer"]]))
        else:
            data = bytes.fromhex(argument["bytes"])
            values.append((ctypes.c_ubyte * len(data)).from_buffer_copy(data))
    driver.launch(function, how, values)


def main(arguments: Sequence[str]) -> int:
    driver = Driver()
    driver.start()
    for number, launch in enumerate(arguments):
        print(f"kernel: {number}", flush=True)
        try:
            run(json.loads(Path(launch).read_text()), driver)
            said = "success"
        except DriverError as error:
            said = str(error)
        time.sleep(PAUSE_S)
        print(f"launch: {said}", flush=True)
        if said != "success" and said not in REFUSALS:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""A stand-in for torch's devices and the driver: notes what would be launched, and where."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.arch import ARCHES
from flash_attention.compile.unit import Unit
from flash_attention.families.forward_args import ForwardKernelArgs
from flash_attention.families.recipe import MapDescription
from flash_attention.launch import (
    driver,
    kept_scratch,
    launcher,
    plan,
    plans,
    tensor_map,
    tile_counters,
)

STREAMS = 7000  # the stream of device 0; others follow
SIZE = ctypes.sizeof(ForwardKernelArgs)


@dataclass(frozen=True)
class LoadedName:
    """In place of a loaded unit: its function is the unit's name."""

    function: str


@dataclass(frozen=True)
class Launched:
    """One kernel that was queued, and what its parameters held at that moment."""

    function: object
    shape: tuple[int, ...]
    maps: list[tuple[MapDescription, int]]  # each with the tensor's address
    arguments: ForwardKernelArgs
    arguments_at: int
    stream: int
    device: int
    early: bool
    scratch_alive: bool


@dataclass
class Gpus:
    """Devices without memory: what was loaded, made ready and launched on them, in order."""

    current: int = 0
    stream: int = STREAMS  # the current one of device 0
    loaded: list[Unit] = field(default_factory=list)
    ready: list[tuple[object, int, int, int]] = field(default_factory=list)
    launches: list[Launched] = field(default_factory=list)
    encoded: dict[int, tuple[MapDescription, int]] = field(default_factory=dict)
    allocated: list[tuple[Any, torch.device]] = field(default_factory=list)  # a weak reference
    allocated_bytes: list[int] = field(default_factory=list)
    zeros: list[tuple[int, int]] = field(default_factory=list)  # the device, the size
    kept: list[object] = field(default_factory=list)  # an address stands for one thing only

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        empty, zeros = torch.empty, torch.zeros
        monkeypatch.setattr(torch.cuda, "device", self._device)
        for module in (tile_counters, kept_scratch, launcher):
            monkeypatch.setattr(module, "is_capturing", lambda: False)
        monkeypatch.setattr(torch, "empty", lambda *size, **how: self._allocate(empty, size, how))
        monkeypatch.setattr(torch, "zeros", lambda *size, **how: self._allocate(zeros, size, how))
        monkeypatch.setattr(launcher, "current_device", lambda: self.current)
        monkeypatch.setattr(launcher, "current_stream", lambda index: self.stream + index)
        monkeypatch.setattr(launcher, "load_unit", self._load)
        monkeypatch.setattr(tile_counters, "_counters_of", cache(tile_counters._TileCounters))
        monkeypatch.setattr(kept_scratch, "_blocks_of", cache(kept_scratch._Blocks))
        monkeypatch.setattr(driver, "zeros", self._zeros)
        monkeypatch.setattr(tensor_map, "encode", self._encode)
        monkeypatch.setattr(driver, "ready_kernel", self._ready)
        monkeypatch.setattr(driver, "launch_kernel", self._launch)

    @contextmanager
    def _device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        try:
            yield
        finally:
            self.current = before

    def _allocate(self, make: Any, size: tuple[Any, ...], how: dict[str, Any]) -> Tensor:
        device = how.get("device")
        if device is None or torch.device(device).type != "cuda":
            made: Tensor = make(*size, **how)
            return made
        made = make(*size, **{**how, "device": "cpu"})
        self.allocated.append((weakref.ref(made), torch.device(device)))
        self.allocated_bytes.append(made.nbytes)
        return made

    def _zeros(self, device_index: int, size: int) -> int:
        made = (ctypes.c_ubyte * size)()
        self.kept.append(made)
        self.zeros.append((device_index, size))
        return ctypes.addressof(made)

    def _load(self, unit: Unit) -> Any:
        self.loaded.append(unit)
        return LoadedName(unit.name)

    def _encode(
        self,
        how: tensor_map.MapParameters,
        address: int,
        dims: tuple[int, ...],
        device_index: int,
    ) -> tensor_map.EncodedMap:
        encoded = (ctypes.c_ubyte * 1)()
        description = replace(how.description, dims=dims)
        self.encoded[ctypes.addressof(encoded)] = (description, address)
        self.kept.append(encoded)
        return tensor_map.EncodedMap(ctypes.addressof(encoded), encoded)

    def _ready(self, function: object, device_index: int, smem_bytes: int) -> None:
        self.ready.append((function, device_index, smem_bytes, self.current))

    def _launch(self, config: Any, function: object, parameters: int, extra: int) -> tuple[int]:
        stream = int(config.hStream)
        names = [f"{of}Dim{axis}" for of in ("grid", "block") for axis in "XYZ"]
        shape = tuple(getattr(config, name) for name in (*names, "sharedMemBytes"))
        early = any("SERIALIZATION" in each.id.name for each in config.attrs)
        assert stream == self.stream + self.current
        pointers, count = (
            ctypes.POINTER(ctypes.c_void_p).from_buffer(ctypes.c_void_p(parameters)),
            0,
        )
        while pointers[count] in self.encoded:
            count += 1
        at = pointers[count]
        assert at is not None
        self.launches.append(
            Launched(
                *(function, shape),
                maps=[self.encoded[pointers[i] or 0] for i in range(count)],
                arguments=ForwardKernelArgs.from_buffer_copy(ctypes.string_at(at, SIZE)),
                arguments_at=at,
                stream=stream,
                device=self.current,
                early=early,
                scratch_alive=all(memory() is not None for memory, _ in self.allocated),
            )
        )
        return (0,)


def gpu_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """A stand-in for a Hopper GPU that has the memory of CPU tensors."""
    made = Gpus(current=-1)
    made.install(monkeypatch)
    for module in (plan, plans):
        monkeypatch.setattr(module, "CPU", None)
    monkeypatch.setattr(plan, "device_arch", lambda _: ARCHES["sm_90"])
    monkeypatch.setattr(plan, "num_sms_of", lambda _: 132)
    plans.forget_plans()
    return made

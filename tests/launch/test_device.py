# SPDX-License-Identifier: Apache-2.0
"""The architecture of a device, and how many multiprocessors it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from flash_attention.arch import ARCHES, DEFAULT_ARCH, Arch
from flash_attention.errors import UnsupportedError
from flash_attention.launch import device
from flash_attention.launch.device import (
    CPU,
    EMULATED_SMS,
    arch_of,
    current_arch,
    current_stream,
    device_arch,
    device_sms,
    num_sms_of,
)


@dataclass
class Properties:
    """The properties torch reports of a device, as plain values."""

    name: str = "GPU"
    major: int = 8
    minor: int = 0
    shared_memory_per_block_optin: int = 200_000
    shared_memory_per_multiprocessor: int = 210_000
    max_threads_per_multi_processor: int = 1024


@pytest.mark.parametrize("name", ARCHES)
def test_a_known_architecture_is_taken_from_the_table(name: str) -> None:
    major, minor = ARCHES[name].capability
    assert arch_of(Properties(major=major, minor=minor)) is ARCHES[name]


def test_a_newer_architecture_is_described_by_the_device() -> None:
    assert arch_of(Properties(major=13, minor=2)) == Arch("sm_132", 200_000, 210_000, 1024, 16)


@pytest.mark.parametrize(("major", "minor"), [(7, 5), (7, 0), (6, 1)])
def test_an_older_device_is_refused(major: int, minor: int) -> None:
    message = rf"Turing card is sm_{major}{minor}; the kernels need sm_80"
    with pytest.raises(UnsupportedError, match=message):
        arch_of(Properties("Turing card", major, minor))


def test_a_device_torch_was_not_built_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UnsupportedError, match="not built for CUDA; install one that is"):
        device_arch.__wrapped__(0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device says what is current")
def test_without_a_device_the_default_architecture_or_another_is_current() -> None:
    assert current_arch() is DEFAULT_ARCH is ARCHES["sm_80"]
    assert current_arch(ARCHES["sm_90"]) is ARCHES["sm_90"]


def test_tensors_on_the_cpu_have_the_multiprocessors_of_the_emulator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "device_sms", lambda index: 100 + index)
    assert [num_sms_of(index) for index in (CPU, 0, 3)] == [EMULATED_SMS, 100, 103]


@pytest.mark.gpu
def test_a_gpu_is_what_torch_says_of_it() -> None:
    index = torch.cuda.current_device()
    properties: Any = torch.cuda.get_device_properties(index)
    assert device_arch(index) == current_arch() == arch_of(properties)
    assert num_sms_of(index) == device_sms(index) == properties.multi_processor_count
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert current_stream(index) == side.cuda_stream
    assert current_stream(index) == torch.cuda.current_stream(index).cuda_stream

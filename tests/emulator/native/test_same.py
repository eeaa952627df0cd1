# SPDX-License-Identifier: Apache-2.0
"""With native code and without it a kernel stores, finds and counts the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from flash_attention import DType
from flash_attention.ladder import get_ladder
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Settings, compiled_unit
from flash_attention.testing import generate_qkv
from ptx_emulator import UserKernel
from ptx_emulator.errors import LaunchError
from ptx_emulator.machine.launch import launch as of_a_launch
from ptx_emulator.native import load_native
from tests.emulator.ptx_kernels import KERNELS, Kernel
from tests.emulator.ptx_mutations import chosen
from tests.gate import one_in
from tests.user_kernel.corpus_kernels import corpus_kernel
from tests.user_kernel.corpus_launches import FILES, launches, more_launches
from tests.user_kernel.test_planted import OF_A_KIND, Planted, planted_text

pytestmark = pytest.mark.skipif(load_native() is None, reason="needs a C compiler")

# Mutations of PTX, by kernel: those that leave out fences, waits and barriers of every kind.
MUTATIONS = {0: (12,), 1: (1, 14, 17), 2: (7, 18), 3: (3, 7), 4: (2, 5, 7, 19)}


def outcome(kernel: UserKernel, arguments: Any, launch: dict[str, Any], schedule: str) -> Any:
    try:
        given = copy.deepcopy(arguments)
        result = kernel.run(*given, **launch, schedule=schedule, seed=3)
    except LaunchError as error:
        return str(error)
    arrays = [array.tobytes() for array in result.arrays]
    return arrays, [str(finding) for finding in result.findings], result.counters.to_dict()


def both(monkeypatch: pytest.MonkeyPatch, *run: Any) -> tuple[Any, Any]:
    native = outcome(*run)
    with monkeypatch.context() as patched:
        patched.setattr(of_a_launch, "load_native", lambda: None)
        return native, outcome(*run)


@pytest.mark.parametrize("entry", FILES)
def test_kernels_of_the_corpus(monkeypatch: pytest.MonkeyPatch, entry: str, schedule: str) -> None:
    file = FILES[entry]
    kernel = corpus_kernel(file, entry, "sm_90a" if file == "hopper.cu" else "sm_80")
    native, numpy = both(monkeypatch, kernel, *(launches() | more_launches())[entry], schedule)
    assert native == numpy


@pytest.mark.parametrize("plant", OF_A_KIND)
def test_planted_mistakes(monkeypatch: pytest.MonkeyPatch, plant: Planted, schedule: str) -> None:
    kernel = UserKernel.of_source(planted_text(plant), plant.entry, arch=plant.arch)
    native, numpy = both(monkeypatch, kernel, *plant.launch, schedule)
    assert native == numpy


@pytest.mark.parametrize("rung", [1, 12, 22, 29])
def test_rungs_of_the_ladder(monkeypatch: pytest.MonkeyPatch, rung: int) -> None:
    config = get_ladder(DType.BF16, 128, 2)[rung - 1].config
    qkv = generate_qkv(1, 128, 2, 128, DType.BF16)
    native = emulate(config, *qkv)
    monkeypatch.setattr(of_a_launch, "load_native", lambda: None)
    numpy = emulate(config, *qkv)
    assert torch.equal(native.output, numpy.output)
    assert native.findings == numpy.findings == ()
    assert native.counters.to_dict() == numpy.counters.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("kernel", one_in(2, KERNELS, 1, id_of=lambda kernel: str(kernel.name)))
def test_kernels_of_every_synchronisation(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    def seen() -> Any:
        runs = [call.run(Settings(), compiled_unit) for call in kernel.calls]
        return [(run.found, run.counters.to_dict()) for run in runs]

    native = seen()
    monkeypatch.setattr(of_a_launch, "load_native", lambda: None)
    assert native == seen()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "place"),
    [
        pytest.param(
            *(KERNELS[number], place),
            id=f"{KERNELS[number].name}-{place}",
            marks=pytest.mark.mutations if number not in (1, 3) or place != places[0] else (),
        )
        for number, places in MUTATIONS.items()
        for place in places
    ],
)
def test_mutated_ptx(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, place: int) -> None:
    site = chosen(kernel)[place]
    given = site.plant(kernel.ptx), Settings(), site.number
    native = kernel.run(*given)
    monkeypatch.setattr(of_a_launch, "load_native", lambda: None)
    assert native == kernel.run(*given) != set()

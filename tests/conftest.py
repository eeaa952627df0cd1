# SPDX-License-Identifier: Apache-2.0
"""Which tests run and in what order. Kernels stay on disk, and little in memory."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import settings

pytest_plugins = ["ptx_emulator.pytest_plugin"]  # as the installed package brings it
settings.register_profile("house", deadline=None)  # a busy machine is no failure
LONG = {
    "backward/test_emulated.py",
    "commands/test_build.py",
    "commands/test_interrupt.py",
    "distributed/test_attention.py",
    "emulator/test_backward_sm80.py",
    "emulator/test_hopper_shapes.py",
    "examples/test_examples.py",
    "forward/test_8_bit_cache.py",
    "forward/test_on_device.py",
    "fp8/test_pages.py",
    "launch/test_decode.py",
    "native/test_build.py",
    "native/test_same.py",
    "render/test_documents.py",
    "tests/test_random_gradients.py",
    "tests/test_random_problems.py",
    "tests/test_sdist.py",
    "tests/test_warm_up.py",
    "tune/test_run.py",
    "wide/test_emulated.py",
    "workbench/test_start.py",
}
"""The files that take longest, by the end of their paths."""


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("house")
    torch.set_num_threads(1)  # tests are small, and run in parallel already
    kernels = config.rootpath / ".pytest_cache" / "kernels"
    os.environ.setdefault("FLASH_ATTENTION_CACHE_DIR", str(kernels))


def pytest_report_header() -> str:
    return "" if torch.cuda.is_available() else "no NVIDIA GPU: tests that need one are left out"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {m for m in ("mutations", "exhaustive") if m not in config.option.markexpr}
    if not torch.cuda.is_available() and not config.option.collectonly:
        left_out.add("gpu")
    dropped = [item for item in items if any(map(item.get_closest_marker, left_out))]
    config.hook.pytest_deselected(items=dropped)
    gone = set(dropped)
    items[:] = sorted((item for item in items if item not in gone), key=_turn)


def _turn(item: pytest.Item) -> int:
    """What looks at machine code goes first: the emulator then finds the PTX of the same kernels.
    Then go long files, so that no worker has one of them left when the others are done."""
    if "kernels" in item.path.parts:
        return 0
    return 1 if "/".join(item.path.parts[-2:]) in LONG else 2


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = {arch for marker in item.iter_markers("gpu") for arch in marker.args}
    if needed and "sm_{}{}".format(*torch.cuda.get_device_capability()) not in needed:
        pytest.skip(f"needs a GPU of {' or '.join(needed)}")


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded by now stays, and is not looked through again and again
    gc.set_threshold(20_000, 20, 1_000)  # nor are the programs of a file, which go at its end


@pytest.fixture(autouse=True, scope="module")
def _forget_kernels() -> Iterator[None]:
    """Frees the kernels and results that the tests of a file have made, which are gigabytes."""
    yield
    holding = {
        *("flash_attention.launch.kernels", "flash_attention.launch.plan"),
        *("flash_attention.launch.programs", "flash_attention.launch.emulation"),
        "ptx_emulator.program.program",
    }
    forgotten = 0
    for module in [m for n, m in sys.modules.items() if n in holding or n.startswith("tests.")]:
        for name, value in list(vars(module).items()):
            if name in ("_kernels", "_units", "_plans"):
                forgotten += len(value)
                value.clear()
            elif hasattr(value, "cache_clear"):
                forgotten += getattr(value.cache_info(), "currsize", 0)  # torch counts otherwise
                value.cache_clear()
    if forgotten:
        gc.collect()
        gc.freeze()  # modules that the file has loaded stay as well
        with suppress(OSError, AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def schedule(request: pytest.FixtureRequest) -> str:
    """The order of warps in which a test emulates a kernel: always the same one, while the tests
    of a file take turns at all of them."""
    from ptx_emulator import SCHEDULES

    return SCHEDULES[zlib.crc32(request.node.nodeid.encode()) % len(SCHEDULES)]


@pytest.fixture
def no_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test that leaves a kernel in the cache folder."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(folder))
    yield
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.fixture
def two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a second kernel combine all partial results of split-KV, also few."""
    monkeypatch.setattr("flash_attention.families.sm90.forward.splits.MOST_ROWS_AT_ONCE", 0)

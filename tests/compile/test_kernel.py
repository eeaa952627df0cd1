# SPDX-License-Identifier: Apache-2.0
"""Kernels come from memory, disk or NVRTC, once each, through crowds, crashes and full disks."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flash_attention.compile import CompiledKernel, compile_kernel
from flash_attention.compile.elf import text_section
from flash_attention.errors import CompileError, UnsupportedError
from tests.compile.conftest import Spawn
from tests.compile.sources import BROKEN, COPY, SCALE_HEADER, TWICE, WITH_HEADER, slow_to_compile

pytestmark = pytest.mark.slow  # left out of `make quick`

COMPILE_AND_PRINT = """\
import hashlib
kernel = compile_kernel(sys.argv[1], arch="sm_80", name="tiny")
print(kernel.compile_seconds is not None, hashlib.sha256(kernel.cubin).hexdigest())
"""


def compile_sm80(source: str) -> CompiledKernel:
    return compile_kernel(source, arch="sm_80", name="tiny")


def was_compiled(source: str) -> bool:
    """Ask for a kernel that nobody in this process holds: was it compiled for us?"""
    return compile_sm80(source).compile_seconds is not None


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="flash_attention"):
        yield caplog


class TestOneProcess:
    def test_first_compile_is_announced_and_kept(
        self, cache: Path, log: pytest.LogCaptureFixture
    ) -> None:
        kernel = compile_kernel(COPY, arch="sm_80", name="a tiny (copy)")
        (folder,) = cache.iterdir()
        assert folder.name.startswith("a_tiny_copy-")
        assert kernel.source_path == folder / "kernel.cu"
        contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert contents.pop("manifest.json")
        assert contents == {
            "kernel.cu": COPY.encode(),
            "kernel.cubin": kernel.cubin,
            "kernel.ptx": kernel.ptx.encode(),
            "kernel.log": kernel.log.encode(),
        }
        assert kernel.compile_seconds is not None
        assert log.messages == [
            f"compiled a tiny (copy) for sm_80 in {kernel.compile_seconds:.2f} s, kept in {folder}"
        ]
        assert f'"{kernel.source_path}"' in kernel.ptx

    def test_kernel_from_disk_is_the_compiled_one(self, log: pytest.LogCaptureFixture) -> None:
        compiled = vars(compile_sm80(COPY))
        log.clear()
        loaded = vars(compile_sm80(COPY))
        assert compiled.pop("compile_seconds") > 0
        assert loaded.pop("compile_seconds") is None
        assert loaded == compiled
        assert log.messages == []

    def test_kernel_someone_holds_comes_from_memory(self) -> None:
        held = compile_sm80(COPY)
        assert compile_sm80(COPY) is held
        assert compile_kernel(COPY, arch="sm_90", name="tiny") is not held

    def test_name_arch_and_source_each_have_their_entry(self, cache: Path) -> None:
        for source, arch, name in [
            (COPY, "sm_80", "tiny"),
            (COPY, "sm_90", "tiny"),
            (COPY, "sm_80", "small"),
            (TWICE, "sm_80", "tiny"),
        ]:
            kernel = compile_kernel(source, arch=arch, name=name)
            assert (kernel.source, kernel.arch, kernel.name) == (source, arch, name)
            assert f".target {arch}" in kernel.ptx
        assert len(list(cache.iterdir())) == 4

    @pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
    def test_damaged_cubin_is_compiled_again(self, damage: str) -> None:
        kernel = compile_sm80(COPY)
        text = text_section(kernel.cubin)
        assert kernel.source_path is not None
        path = kernel.source_path.with_name("kernel.cubin")
        del kernel
        data = bytearray(path.read_bytes())
        data[data.index(text)] ^= 1
        path.write_bytes(bytes(data[: len(data) // 2]) if damage == "truncated" else bytes(data))
        if damage == "missing":
            path.unlink()
        kernel = compile_sm80(COPY)
        assert kernel.compile_seconds is not None
        assert text_section(kernel.cubin) == text == text_section(path.read_bytes())
        del kernel
        assert not was_compiled(COPY)

    def test_threads_share_one_compile(self, log: pytest.LogCaptureFixture) -> None:
        with ThreadPoolExecutor(4) as pool:
            kernels = list(pool.map(compile_sm80, [COPY] * 4))
        assert all(kernel is kernels[0] for kernel in kernels)
        assert len(log.messages) == 1


class TestHeaders:
    def test_editing_a_header_makes_another_kernel(self, include_dir: Path) -> None:
        def text() -> tuple[bytes, bool]:
            kernel = compile_kernel(WITH_HEADER, arch="sm_80", name="tiny", include_dir=include_dir)
            return text_section(kernel.cubin), kernel.compile_seconds is not None

        header = include_dir / "fa" / "scale.cuh"
        three, _ = text()
        header.write_text(SCALE_HEADER.replace("3", "5"))
        five, compiled = text()
        assert compiled
        assert five != three
        (include_dir / "fa" / "unrelated.cuh").write_text("#pragma once\n")
        assert text() == (five, False)
        header.write_text(SCALE_HEADER)
        assert text() == (three, False)

    @pytest.mark.parametrize("hidden", ["\f", "\v", "#in\\\r\nclude <fa/scale.cuh>\n//"])
    def test_no_edited_header_is_overlooked(self, include_dir: Path, hidden: str) -> None:
        source = hidden + WITH_HEADER
        before = compile_kernel(source, arch="sm_80", name="tiny", include_dir=include_dir).cubin
        (include_dir / "fa" / "scale.cuh").write_text(SCALE_HEADER.replace("3", "5"))
        after = compile_kernel(source, arch="sm_80", name="tiny", include_dir=include_dir).cubin
        assert text_section(after) != text_section(before)

    def test_header_edited_during_the_compile_is_not_in_it(
        self, include_dir: Path, cache: Path
    ) -> None:
        scaled = slow_to_compile(400).replace("= a[i];", "= scale(a[i]);")
        source = f"#include <fa/scale.cuh>\n{scaled}"
        header = include_dir / "fa" / "scale.cuh"

        def edit_when_locked() -> None:
            wait_until(lambda: any(cache.glob(".*.lock")))
            header.write_text(SCALE_HEADER.replace("3", "5"))

        def compiled() -> bytes:
            kernel = compile_kernel(source, arch="sm_80", name="tiny", include_dir=include_dir)
            return text_section(kernel.cubin)

        editor = threading.Thread(target=edit_when_locked)
        editor.start()
        three = compiled()
        editor.join()
        five = compiled()
        header.write_text(SCALE_HEADER)
        assert five != three == compiled()
        assert len(list(cache.iterdir())) == 2


class TestErrors:
    def test_refused_source_is_shown_with_its_log(self, cache: Path) -> None:
        with pytest.raises(CompileError, match=r"cannot compile tiny for sm_80") as caught:
            compile_sm80(BROKEN)
        path = caught.value.source_path
        assert path is not None
        assert path.read_text() == BROKEN
        assert f'{path}(2): error: identifier "undeclared_value"' in caught.value.log
        assert caught.value.log in str(caught.value)
        assert path.with_name("kernel.log").read_text() == caught.value.log
        with pytest.raises(CompileError):
            compile_sm80(BROKEN)

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("#include <cuda_fp16.h>\n" + COPY, "only headers of this package"),
            ("#include <fa/no_such.cuh>\n" + COPY, "fa/no_such.cuh"),
        ],
    )
    def test_includes_are_checked_before_anything_is_written(
        self, cache: Path, source: str, message: str
    ) -> None:
        with pytest.raises(CompileError, match=message):
            compile_sm80(source)
        assert not cache.exists()

    def test_unknown_arch_is_checked_before_anything_is_written(self, cache: Path) -> None:
        with pytest.raises(UnsupportedError, match="compiles for"):
            compile_kernel(COPY, arch="sm_35", name="tiny")
        assert not cache.exists()

    def test_source_without_a_kernel_is_not_kept(self, cache: Path) -> None:
        with pytest.raises(CompileError, match="the translation unit has no kernel"):
            compile_sm80("__device__ int nothing;\n")
        assert list(cache.iterdir()) == []


class TestManyProcesses:
    def test_eight_processes_compile_a_cold_kernel_once(self, spawn: Spawn, cache: Path) -> None:
        processes = [spawn(COMPILE_AND_PRINT, slow_to_compile()) for _ in range(8)]
        outputs = [process.communicate(timeout=100) for process in processes]
        assert [process.returncode for process in processes] == [0] * 8, outputs
        results = [output.split() for output, _ in outputs]
        assert sorted(compiled for compiled, _ in results) == ["False"] * 7 + ["True"]
        assert len({digest for _, digest in results}) == 1
        announced = "".join(errors for _, errors in outputs)
        assert announced.count("flash_attention: compiled tiny for sm_80 in ") == 1
        assert announced.count("\n") == 1
        assert len(list(cache.iterdir())) == 1

    def test_process_killed_while_compiling_is_no_obstacle(self, spawn: Spawn, cache: Path) -> None:
        source = slow_to_compile()
        process = spawn(COMPILE_AND_PRINT, source)
        wait_until(lambda: any(cache.glob(".*.lock")))
        time.sleep(0.1)
        process.kill()
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
        assert [path.suffix for path in cache.iterdir()] == [".lock"]
        assert was_compiled(source)
        assert not was_compiled(source)
        assert len(list(cache.iterdir())) == 1

    def test_process_killed_while_writing_is_no_obstacle(self, spawn: Spawn, cache: Path) -> None:
        die_at_the_1000th_byte = (
            "import resource, signal\n"
            "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        )
        process = spawn(die_at_the_1000th_byte + COMPILE_AND_PRINT, COPY)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGXFSZ
        (leftover,) = cache.glob(".tmp-*")
        assert (leftover / "kernel.cubin").stat().st_size == 1000
        assert was_compiled(COPY)
        assert not was_compiled(COPY)

    def test_full_disk_leaves_kernels_in_memory_and_warns_once(
        self, spawn: Spawn, cache: Path
    ) -> None:
        no_room_beyond_1000_bytes = (
            "import resource\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
            "for source in sys.argv[1:]:\n"
            "    kernel = compile_kernel(source, arch='sm_80', name='tiny')\n"
            "    assert kernel.cubin and kernel.source_path is None\n"
            "    del kernel\n"
            "    again = compile_kernel(source, arch='sm_80', name='tiny')\n"
            "    assert again.compile_seconds is not None\n"
        )
        process = spawn(no_room_beyond_1000_bytes, COPY, TWICE)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert errors.count("cannot write to") == 1
        assert errors.count("kept in memory") == 2
        assert list(cache.iterdir()) == []

    def test_waiting_for_one_kernel_does_not_hold_up_another(
        self, spawn: Spawn, cache: Path
    ) -> None:
        entry = compile_sm80(COPY).source_path
        assert entry is not None
        entry.unlink()
        hold_until_killed = (
            "import time\n"
            "from pathlib import Path\n"
            "from flash_attention.compile.cache import DiskCache\n"
            "with DiskCache(Path(sys.argv[1])).lock(sys.argv[2]):\n"
            "    print('held', flush=True)\n"
            "    time.sleep(60)\n"
        )
        holder = spawn(hold_until_killed, str(cache), entry.parent.name)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(was_compiled, COPY)
            assert was_compiled(TWICE)
            assert not waiting.done()
            holder.kill()
            assert waiting.result(timeout=30)
        holder.communicate(timeout=30)

    def test_a_process_forked_during_a_compile_compiles_the_same_kernel(
        self, spawn: Spawn, cache: Path
    ) -> None:
        fork_when_locked = (
            "import os, threading, time\n"
            "from pathlib import Path\n"
            "make = lambda: compile_kernel(sys.argv[1], arch='sm_80', name='tiny')\n"
            "thread = threading.Thread(target=make)\n"
            "thread.start()\n"
            "while not list(Path(sys.argv[2]).glob('.*.lock')): time.sleep(0.001)\n"
            "time.sleep(0.2)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    os._exit(make().compile_seconds is not None)\n"
            "thread.join()\n"
            "print(os.waitpid(child, 0)[1])\n"
        )
        process = spawn(fork_when_locked, slow_to_compile(), str(cache))
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        assert output == "0\n", errors  # it waited for the parent and loaded what that stored


@pytest.mark.parametrize("name", ['quote"d', "new\nline", "\udcff", "back\\slash", "é" * 60])
def test_an_odd_cache_folder_is_one_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path / name))
    assert was_compiled(COPY)
    assert not was_compiled(COPY)
    (message,) = log.messages
    assert message.encode().decode() == message  # it can be printed

# SPDX-License-Identifier: Apache-2.0
"""NVRTC compiles with nothing but its wheel, and says what is missing when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import cuda.pathfinder
import pytest

from flash_attention.compile import nvrtc
from flash_attention.compile.elf import text_section
from flash_attention.compile.nvrtc import (
    RefusedSourceError,
    check_arch,
    compile_source,
    compiler_identity,
    nvrtc_version,
    options,
    settle_signals,
)
from flash_attention.errors import UnsupportedError
from tests.compile.conftest import Spawn
from tests.compile.sources import BROKEN, COPY, SCALE_HEADER, SPILLING, WITH_HEADER

SITE_PACKAGES = Path(cuda.pathfinder.__file__).parent.parent.parent


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
def test_one_compile_yields_ptx_cubin_and_log(arch: str) -> None:
    compilation = compile_source(COPY, source_name="/made/up/kernel.cu", arguments=options(arch))
    assert f".target {arch}" in compilation.ptx
    assert ".visible .entry flash_forward_kernel(" in compilation.ptx
    assert '.file\t1 "/made/up/kernel.cu"' in compilation.ptx
    assert "\0" not in compilation.ptx + compilation.log
    assert text_section(compilation.cubin)
    assert f"'flash_forward_kernel' for '{arch}'" in compilation.log
    assert 0 < compilation.seconds < 60


def test_line_information_leaves_the_machine_code_alone() -> None:
    with_lines, plain = (
        compile_source(SPILLING, source_name="kernel.cu", arguments=arguments)
        for arguments in (options("sm_80"), [o for o in options("sm_80") if o != "-lineinfo"])
    )
    assert ".loc" in with_lines.ptx
    assert ".loc" not in plain.ptx
    assert text_section(with_lines.cubin) == text_section(plain.cubin)


def test_headers_are_texts_with_their_paths_in_line_information(include_dir: Path) -> None:
    compilation = compile_source(
        WITH_HEADER,
        source_name="kernel.cu",
        arguments=options("sm_80"),
        headers={"fa/scale.cuh": SCALE_HEADER},
        include_dir=include_dir,
    )
    assert f'"{include_dir}/fa/scale.cuh"' in compilation.ptx


def test_no_header_is_read_from_a_file(include_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(include_dir)
    for include in ("<fa/scale.cuh>", '"fa/scale.cuh"'):
        source = WITH_HEADER.replace("<fa/scale.cuh>", include)
        with pytest.raises(RefusedSourceError, match=r"open source file \"fa/scale\.cuh\""):
            compile_source(
                source, source_name=str(include_dir / "kernel.cu"), arguments=options("sm_80")
            )


@pytest.mark.parametrize("folder", ['quote"d', "back\\slash", "new\nline", "\udcff", "é", "a b"])
def test_any_path_can_stand_in_line_information(folder: str) -> None:
    compilation = compile_source(
        WITH_HEADER,
        source_name=f"/{folder}/kernel.cu",
        arguments=options("sm_80"),
        headers={"fa/scale.cuh": SCALE_HEADER},
        include_dir=Path(f"/{folder}"),
    )
    assert text_section(compilation.cubin)
    assert compilation.ptx.count("kernel.cu") == 1


def test_refusal_carries_the_log() -> None:
    with pytest.raises(RefusedSourceError, match=r"kernel\.cu\(2\): error.*undeclared_value"):
        compile_source(BROKEN, source_name="kernel.cu", arguments=options("sm_80"))


def test_an_interrupt_leaves_no_compile_to_a_thread_that_does_not_run_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the process would not wait for that thread, and crash while NVRTC works in it."""
    settle_signals()
    started: list[threading.Thread] = []
    called: list[str] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(nvrtc, "_function", called.append)
    with pytest.raises(KeyboardInterrupt):
        compile_source(COPY, source_name="kernel.cu", arguments=())
    for thread in started:
        thread.run()
    assert (len(started), called) == (1, [])


@pytest.mark.parametrize("arch", ["sm_20", "compute_80", "80", "sm_80;-G", ""])
def test_unknown_target_is_refused_with_the_known_ones(arch: str) -> None:
    with pytest.raises(UnsupportedError, match=r"NVRTC \d+\.\d+ compiles for .*sm_80, .*sm_90"):
        check_arch(arch)


def test_identity_tells_more_than_the_version() -> None:
    assert compiler_identity().startswith(f"{nvrtc_version()} ")
    assert nvrtc_version().split(".")[0].isdigit()


def test_compiles_with_no_library_path_no_toolkit_and_no_driver(spawn: Spawn) -> None:
    code = (
        "import os\n"
        "assert compile_kernel(sys.argv[1], arch='sm_80', name='copy').cubin\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libnvrtc-builtins' in maps and 'libcuda.so' not in maps\n"
    )
    with pytest.MonkeyPatch.context() as environment:
        for variable in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
            environment.delenv(variable, raising=False)
        process = spawn(code, COPY)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("with_bindings", [True, False])
def test_missing_wheel_is_named(bare_package: Path, tmp_path: Path, with_bindings: bool) -> None:
    paths = [str(bare_package)]
    if with_bindings:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "cuda").symlink_to(SITE_PACKAGES / "cuda")
        paths.append(str(tmp_path / "site"))
    base_python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    code = (
        "from flash_attention.compile import nvrtc_version\n"
        "from flash_attention.errors import CompileError\n"
        "try:\n    nvrtc_version()\nexcept CompileError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [base_python, "-S", "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    if not result.stdout:
        pytest.skip("this machine has an NVRTC outside the virtual environment")
    assert "pip install nvidia-cuda-nvrtc" in result.stdout

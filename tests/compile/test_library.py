# SPDX-License-Identifier: Apache-2.0
"""Which NVRTC is taken where there are several, and that the one torch loaded is left alone."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from flash_attention.compile.library import _choice, nvrtc_library
from tests.compile.conftest import Spawn
from tests.compile.sources import COPY

OURS, OF_CUDA_12 = Path("/ours/libnvrtc.so.13"), Path("/torch/libnvrtc.so.12")


@pytest.mark.parametrize(
    ("driver", "chosen", "why"),
    [
        (None, OURS, "that of nvidia-cuda-nvrtc-cu12, which torch brought, is left alone"),
        ((13, 0), OURS, "that of nvidia-cuda-nvrtc-cu12, which torch brought, is left alone"),
        ((12, 8), OF_CUDA_12, "the driver supports CUDA 12.8 and loads no machine code of 13"),
    ],
)
def test_a_driver_of_cuda_12_gets_machine_code_that_it_loads(
    driver: tuple[int, int] | None, chosen: Path, why: str
) -> None:
    path, reason = _choice(OURS, OF_CUDA_12, driver)
    assert path == chosen
    assert why in reason


def test_our_wheel_needs_no_explanation_where_it_is_the_only_one() -> None:
    assert _choice(OURS, None, None) == (OURS, "of nvidia-cuda-nvrtc")


def test_the_library_is_that_of_the_wheel() -> None:
    library = nvrtc_library()
    assert library.path.name == "libnvrtc.so.13"
    assert "site-packages" in library.path.parts
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert library.handle.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    assert major.value == 13


def test_a_loaded_library_of_another_release_is_left_alone(spawn: Spawn, tmp_path: Path) -> None:
    """As torch built for CUDA 12 leaves it: under the name by which a search finds it first."""
    other = tmp_path / "libnvrtc.so.12"
    source = tmp_path / "other.c"
    source.write_text("int nvrtcVersion(int* x, int* y) { *x = 12; *y = 8; return 0; }\n")
    code = (
        "import ctypes, os\n"
        "ctypes.CDLL(sys.argv[2], mode=os.RTLD_GLOBAL)\n"
        "kernel = compile_kernel(sys.argv[1], arch='sm_90a', name='copy')\n"
        "from flash_attention.compile import nvrtc_version\n"
        "print(nvrtc_version().split('.')[0], kernel.cubin[:4])\n"
    )
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make another library with")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvrtc.so.12", "-o", other, source], check=True
    )
    process = spawn(code, COPY, str(other))
    output, errors = process.communicate(timeout=60)
    assert output == "13 b'\\x7fELF'\n", errors

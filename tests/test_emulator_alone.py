# SPDX-License-Identifier: Apache-2.0
"""The wheel of packages/ptx_emulator finds a race where there is neither torch nor the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
NOT_OURS = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
FIND_A_RACE = """
import sys

wheel, kernel = sys.argv[1:]
sys.path[:] = [wheel, *(path for path in sys.path if "ptx_emulator" not in path)]


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "flash_attention", "typer", "rich"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())
import numpy as np

import ptx_emulator

assert ptx_emulator.__file__.startswith(wheel), ptx_emulator.__file__
from ptx_emulator.native import load_native

x = np.arange(1024, dtype=np.float32)
run = ptx_emulator.UserKernel.of_file(kernel).run(ptx_emulator.Empty(4), x, grid=4, block=256)
assert run.arrays[0].tolist() == x.reshape(4, 256).sum(1).tolist()
print(*sorted({finding.kind for finding in run.findings}), load_native() is not None)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    shutil.copytree(ROOT / "packages" / "ptx_emulator", folder / "source", ignore=NOT_OURS)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=folder / "source",
        check=True,
        capture_output=True,
    )
    (archive,) = folder.glob("*.whl")
    with ZipFile(archive) as file:
        file.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_a_race_is_found_without_torch(wheel: Path) -> None:
    compiler = any(map(shutil.which, ("cc", "gcc", "clang")))
    kernel = ROOT / "examples" / "kernels" / "block_sum.cu"
    command = [sys.executable, "-c", FIND_A_RACE, str(wheel), str(kernel)]
    result = subprocess.run(command, cwd=wheel, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["intra-warp-race", "race", str(compiler)]


def test_it_asks_for_no_torch(wheel: Path) -> None:
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    needed = [line.split()[1] for line in lines if line.startswith("Requires-Dist:")]
    assert sorted(name.split("<")[0].split(">")[0] for name in needed) == [
        "numpy",
        "nvidia-cuda-nvrtc",
    ]


def test_pytest_finds_its_fixture(wheel: Path, tmp_path: Path) -> None:
    test = tmp_path / "test_kernel.py"
    test.write_text(
        "import numpy as np\n\n\n"
        "def test_sum(assert_clean):\n"
        f"    kernel = {str(ROOT / 'examples' / 'kernels' / 'block_sum.cu')!r}\n"
        "    assert_clean(kernel, np.zeros(4, np.float32), np.ones(1024, np.float32),"
        " grid=4, block=256)\n"
    )
    (named,) = wheel.glob("*.dist-info/entry_points.txt")
    assert (
        "[pytest11]\nptx_emulator.pytest_plugin = ptx_emulator.pytest_plugin" in named.read_text()
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    result = subprocess.run(
        [*command, "-p", "ptx_emulator.pytest_plugin", f"--rootdir={tmp_path}"],
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert "AssertionError: block_sum, lockstep: 2 findings" in result.stdout
    assert "block_sum.cu:10  if (t < step)" in result.stdout

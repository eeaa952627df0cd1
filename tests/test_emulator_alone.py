# SPDX-License-Identifier: Apache-2.0
"""The wheel of packages/ptx_emulator finds a race where there is neither torch nor the rest."""

from __future__ import annotations

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

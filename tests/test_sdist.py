# SPDX-License-Identifier: Apache-2.0
"""The sdist has all that is tracked, and its tests run where it is unpacked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # left out of `make quick`

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
NOT_OURS = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build")
A_QUICK_PART = (
    "tests/call",
    "tests/test_repo.py",
    "tests/test_arch.py",
    "tests/compile/test_elf.py",
)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "checkout", ignore=NOT_OURS)
    subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=folder / "checkout",
        check=True,
        capture_output=True,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "unpacked", filter="data")
    (root,) = (folder / "unpacked").iterdir()
    return root


def test_what_is_tracked_is_in_it(unpacked: Path) -> None:
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a checkout of git")
    missing = [name for name in tracked.stdout.split("\0") if not (unpacked / name).exists()]
    assert missing == []


def test_its_tests_run_where_it_is_unpacked(unpacked: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    result = subprocess.run(
        [*command, *A_QUICK_PART], cwd=unpacked, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]

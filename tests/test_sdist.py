# SPDX-License-Identifier: Apache-2.0
"""The sdist has all that is tracked, and its tests run where it is unpacked. The wheel that is made
of it reports the stored results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # left out of `make quick`

ROOT = Path(__file__).resolve().parent.parent
BUILD = "import sys; from setuptools import build_meta; build_meta.build_%s(sys.argv[1])"
NOT_OURS = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build")
A_QUICK_PART = ("tests/test_arch.py", "tests/compile/test_elf.py")


def build(what: str, folder: Path, source: Path) -> None:
    command = [sys.executable, "-c", BUILD % what, str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    shutil.copytree(ROOT, folder / "checkout", ignore=NOT_OURS)
    build("sdist", folder, folder / "checkout")
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


def test_its_wheel_reports_the_stored_results(unpacked: Path, tmp_path: Path) -> None:
    build("wheel", tmp_path, unpacked)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = "import flash_attention_workbench.start as command; command.main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "report"],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"results: {tmp_path / 'site'}/")
    assert "left out" not in result.stdout
    shown = (elsewhere / "report.html").read_text()
    assert [
        path.name for path in sorted((ROOT / "results").iterdir()) if path.name not in shown
    ] == []

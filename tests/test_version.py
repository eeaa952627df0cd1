# SPDX-License-Identifier: Apache-2.0
"""The version is that of this distribution, whatever else is called `flash_attention`."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from flash_attention import version
from flash_attention_workbench.commands.probes import PROBES, Finding, examine
from flash_attention_workbench.extras import how_to_install

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def install(folder: Path, name: str, number: str) -> None:
    """Leave the metadata of a distribution where Python looks for it."""
    metadata = folder / f"{name}-{number}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that distributions are found in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def version_there() -> str:
    found = runpy.run_path(version.__file__)["VERSION"]
    assert isinstance(found, str)
    return found


def test_another_distribution_of_the_import_name_does_not_count(site: Path) -> None:
    install(site, "flash_attention", "9.8.7")
    assert version_there() == "0+unknown"
    install(site, "flash_attention_jit", "1.2.3")
    assert version_there() == "1.2.3"


def test_the_name_is_that_of_the_project() -> None:
    project = re.search(r'^\[project\]\nname = "([^"]+)"', PYPROJECT.read_text(), re.M)
    assert project is not None
    (name,) = project.groups()
    assert name == version.DISTRIBUTION == "flash-attention-jit"
    assert f'all = ["{name}[cli,plot,inspect]"]' in PYPROJECT.read_text()
    assert how_to_install("cli") == f"pip install '{name}[cli]'"


def test_the_changelog_begins_with_the_version_of_both_distributions() -> None:
    root = PYPROJECT.parent
    (first, *_) = re.findall(r"^## (\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(), re.M)
    for project in (PYPROJECT, root / "packages" / "ptx_emulator" / "pyproject.toml"):
        assert f'\nversion = "{first}"\n' in project.read_text()


def examined() -> Finding:
    return examine(next(probe for probe in PROBES if probe.name == version.DISTRIBUTION))


def test_doctor_shows_the_version_and_the_folder(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flash_attention_workbench.commands.probes.VERSION", "1.2.3")
    install(site, "flash_attention_jit", "1.2.3")
    finding = examined()
    assert (finding.status, finding.advice) == ("ok", "")
    assert finding.detail == f"1.2.3, in {Path(version.__file__).parent}"


def test_doctor_names_a_distribution_that_has_the_same_modules(site: Path) -> None:
    install(site, "flash_attention", "9.8.7")
    finding = examined()
    assert finding.status == "missing"
    assert "flash_attention 9.8.7" in finding.detail
    assert "pip uninstall flash_attention" in finding.advice


def test_doctor_says_that_nothing_is_installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flash_attention_workbench.commands.probes.VERSION", "0+unknown")
    finding = examined()
    assert finding.status == "missing"
    assert "not installed" in finding.detail

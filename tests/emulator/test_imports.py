# SPDX-License-Identifier: Apache-2.0
"""The emulator knows nothing of the package beside it."""

from __future__ import annotations

from tests.imported import SOURCES, imports

EMULATOR = SOURCES[1]


def test_the_emulator_imports_itself_alone() -> None:
    found = imports(EMULATOR)
    assert len(found) > 300
    assert [str(each) for each in found if each.package != EMULATOR.name] == []

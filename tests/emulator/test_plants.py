# SPDX-License-Identifier: Apache-2.0
"""Mistakes in small kernels: each is found, by the kind and at the line that its file marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptx_emulator.errors import EmulatorError
from tests.emulator.annotated import Annotated, kernels_in

PLANTS = list(kernels_in(Path(__file__).parent / "plants"))
STOPPED = {"deadlock": "cannot go on", "launch": ""}  # what the error says


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.path.stem}-{plant.name}")
def test_a_mistake_is_found_at_its_line(plant: Annotated) -> None:
    ((line, kind),) = plant.mistakes
    place = f"{plant.path}:{line}"
    if kind in STOPPED:
        with pytest.raises(EmulatorError, match=STOPPED[kind]) as error:
            plant.run()
        assert kind == "launch" or place in str(error.value)
        return
    result, _ = plant.run()
    found = {(finding.kind, finding.user_source) for finding in result.findings}
    assert (kind, place) in found, [str(finding) for finding in result.findings]


def test_there_are_many_plants() -> None:
    names = {plant.name for plant in PLANTS}
    of_hopper = {plant.name for plant in PLANTS if plant.path.stem.startswith("hopper")}
    assert len(names) >= 100
    assert len(of_hopper) >= 25

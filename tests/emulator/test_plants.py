# SPDX-License-Identifier: Apache-2.0
"""Mistakes in small kernels: each is found, by the kind and at the line that its file marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptx_emulator.errors import EmulatorError
from tests.emulator.annotated import Annotated, kernels_in

PLANTS = list(kernels_in(Path(__file__).parent / "plants"))
STOPPED = {"deadlock": "cannot go on", "launch": "a GPU|up to|allows|is not cut into"}  # messages


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


SAID = {
    "shared_pointer_taken_for_a_global_one": "a pointer to shared memory is taken for one",
    "null_pointer": "the pointer is null",
    "no_barrier_between_store_and_load": "written by lane 31 of warp 1, with no barrier in between",
    "copy_that_is_not_waited_for": "cp.async of warp 0, with no cp.async.wait_group in between",
    "barrier_before_the_wait_for_a_copy": "with no cp.async.wait_group and barrier in between",
    "neighbours_memory_without_a_barrier": "of cluster rank 1, with no barrier of the cluster",
    "producer_that_waits_for_nobody": "lane 0 of warp 1, with no barrier or mbarrier in between",
    "operand_overwritten_before_the_wait": "wgmma of warpgroup 0, with no wgmma.wait_group",
    "too_few_bytes_expected": "128 bytes and copies brought 256: it is 128 bytes too small",
    "too_many_bytes_expected": "512 bytes and copies brought 256: it is 256 bytes too large",
    "barrier_for_some_threads": "the lanes 0xffffff00 of the warp went past this barrier",
    "printf_of_a_float_as_an_integer": "%d of printf gets an argument of type f64",
    "printf_with_an_argument_too_few": "%d of printf has no argument",
}


@pytest.mark.parametrize("name", SAID)
def test_a_finding_says_who_and_what_is_missing(name: str) -> None:
    (plant,) = (plant for plant in PLANTS if plant.name == name)
    try:
        said = " ".join(finding.detail for finding in plant.run()[0].findings)
    except EmulatorError as error:
        said = str(error)
    assert SAID[name] in said


def test_the_lane_and_its_rank_are_named() -> None:
    (plant,) = (plant for plant in PLANTS if plant.name == "neighbour_may_have_ended")
    (finding,) = plant.run()[0].findings
    assert (finding.cta, finding.rank, finding.warp, finding.lane) == (1, 1, 0, 0)
    assert "by CTA 1 (cluster rank 1) warp 0 lane 0" in str(finding)

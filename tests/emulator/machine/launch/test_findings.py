# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import numpy as np

from tests.emulator.machine.machines import FIRST_LINE, LOAD, STORE, make_machine


def test_a_finding_names_the_first_lane_and_both_places() -> None:
    machine = make_machine(ctas=3, warps=2)
    lanes = machine.lanes.all
    bad = (lanes.cta == 2) & (lanes.warp == 1) & (lanes.lane >= 7)
    addresses = np.arange(lanes.count) + 0x500
    machine.findings.report("race", "read too early", LOAD, lanes, bad, addresses, STORE)
    (finding,) = machine.findings.items
    assert (finding.kernel, finding.cta, finding.warp, finding.lane) == ("places", 2, 1, 7)
    assert finding.address == 0x500 + int(np.flatnonzero(bad)[0])
    assert (finding.ptx_line, finding.source) == (FIRST_LINE + 2, "places.cu:11")
    assert (finding.other_ptx_line, finding.other_source) == (FIRST_LINE, "places.cu:10")
    assert finding.count == 25
    text = str(finding)
    for part in ("[race]", "CTA 2 warp 1 lane 7", "places.cu:11", "places.cu:10", "(x25)"):
        assert part in text
    assert json.loads(json.dumps(finding.to_dict()))["count"] == 25


def test_the_same_mistake_is_found_once_and_counted() -> None:
    machine = make_machine()
    lanes = machine.lanes.all
    for first in (3, 0, 8):
        machine.findings.report("race", "text", LOAD, lanes, lanes.lane >= first, None, STORE)
    machine.findings.report("race", "text", STORE, lanes, lanes.lane >= 0, None, STORE)
    machine.findings.report("race", "text", LOAD, lanes, lanes.lane >= 0, None, None)
    machine.findings.report("race", "none", LOAD, lanes, lanes.lane > 31, None, LOAD)
    assert [finding.count for finding in machine.findings.items] == [29 + 32 + 24, 32, 32]
    assert [finding.lane for finding in machine.findings.items] == [3, 0, 0]
    assert len(machine.findings) == 3


def test_a_mistake_in_the_text_has_no_lane() -> None:
    machine = make_machine()
    machine.findings.report("wgmma-in-flight", "text", LOAD, None, None)
    (finding,) = machine.findings.items
    assert (finding.cta, finding.lane, finding.address, finding.other_ptx_line) == (None,) * 4
    assert "CTA" not in str(finding)

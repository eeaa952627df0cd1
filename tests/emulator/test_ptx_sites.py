# SPDX-License-Identifier: Apache-2.0
"""The rules that mutate PTX: what a line becomes, and which lines are chosen."""

from __future__ import annotations

import pytest

from tests.emulator.ptx_sites import RULES, Site, sites, spread

TRY = "mbarrier.try_wait.parity.shared::cta.b64 done, [%r1]"
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1]"


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("\tfence.proxy.async.shared::cta;", {"no proxy fence": ""}),
        ("\tbar.sync \t0;", {"no barrier": ""}),
        ("\tbar.warp.sync \t-1;", {"no __syncwarp": ""}),
        ("\tmembar.gl;", {"no fence between threads": ""}),
        (
            "\twgmma.wait_group.sync.aligned 1;",
            {
                "no wait for a group": "",
                "one more group may be pending": "wgmma.wait_group.sync.aligned 2;",
            },
        ),
        (
            "red.release.gpu.global.add.s32 [%rd1], 1;",
            {"no release": "red.relaxed.gpu.global.add.s32 [%rd1], 1;"},
        ),
        (
            f"{TRY}, %r2;",
            {
                "no wait for an mbarrier": "mov.pred done, 1;",
                "the other parity": "{ .reg .b32 changed; xor.b32 changed, %r2, 1; "
                f"{TRY}, changed; }}",
            },
        ),
        (
            f"{EXPECT}, %r2;",
            {
                "no arrival with bytes": "",
                "16 bytes more": "{ .reg .b32 changed; add.s32 changed, %r2, 16; "
                f"{EXPECT}, changed; }}",
                "16 bytes fewer": "{ .reg .b32 changed; add.s32 changed, %r2, -16; "
                f"{EXPECT}, changed; }}",
            },
        ),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];", {"no arrival at an mbarrier": ""}),
        ("// bar.sync 0;", {}),
        ("ld.global.u32 %r1, [%rd1];", {}),
    ],
)
def test_what_rules_make_of_a_line(line: str, becomes: dict[str, str]) -> None:
    found = sites(f"first\n{line}\nlast")
    assert {site.rule.mistake: site.becomes for site in found} == becomes
    for site in found:
        assert site.plant(f"first\n{line}\nlast") == f"first\n{site.becomes}\nlast"


def test_rules_take_turns_and_spread_their_sites() -> None:
    first, second = RULES[:2]
    found = [Site(first, number, "", "") for number in range(100)] + [Site(second, 7, "", "")]
    taken = spread(found, 5)
    assert [site.number for site in taken if site.rule is first] == [0, 25, 50, 75]
    assert [site.number for site in taken if site.rule is second] == [7]
    with pytest.raises(ValueError, match="101 sites are fewer than 102"):
        spread(found, 102)

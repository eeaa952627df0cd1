# SPDX-License-Identifier: Apache-2.0
"""What breaks a contract is named first: a slot's by its variant, the host's by the number."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from flash_attention.call.features import PLAIN, Features
from flash_attention.compile import INCLUDE_DIR, compile_to_ptx
from flash_attention.compile.binding import defined_types
from flash_attention.errors import CompileError
from flash_attention.families.registry import unit_of
from flash_attention.families.sm90.forward.combine import combine_unit
from flash_attention.families.sm90.forward.features import Sm90Features, SplitKind
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, KernelConfig, TileOrder
from flash_attention.ladder import get_ladder
from tests.emulator.edits import Edit, edited_headers
from tests.hopper_configs import EVERY_SWITCH

UNIFIED = HopperForwardKernelConfig(DType.BF16, 112, 2, 80, 1)
SHORT = replace(
    EVERY_SWITCH,
    consumers=1,
    ping_pong=False,
    stages=1,
    narrow_keys=0,
    tile_order=TileOrder.ONE_EACH,
    group_mib=0,
    own_output=False,
    skip_empty=False,
)
PER_BATCH = replace(EVERY_SWITCH, skip_empty=False)
EVEN = Sm90Features(decode=True, heads_together=4, splits=SplitKind.EVEN)


@dataclass(frozen=True)
class Missing:
    """A member that a variant has by another name. Consumer and Producer are no slots."""

    slot: str
    member: str
    config: HopperForwardKernelConfig = EVERY_SWITCH
    features: Features = PLAIN

    @property
    def source(self) -> str:
        return unit_of(self.config, self.features).source

    @property
    def edit(self) -> Edit:
        bound = re.search(rf"using {self.slot} = fa::([\w:]+)", self.source)
        base = "LeadingProducer" if self.slot == "Producer" else self.slot
        name = bound[1] if bound else f"sm90::{base}"
        header, kind = defined_types()[name], name.rpartition("::")[2]
        text = (INCLUDE_DIR / header).read_text()
        opened = re.search(rf"^(?:struct|class) {kind}\b[^;{{]*\{{", text, re.MULTILINE)
        assert opened
        return Edit(
            header.removeprefix("fa/"),
            *(f" {self.member}", f" no_{self.member}"),
            after=text[: opened.end()],
        )


MISSING = [
    Missing("DType", "kLargestSum"),
    Missing("Exponential", "offset(float max"),
    Missing("Score", "scale("),
    Missing("Mask", "end_key("),
    Missing("Sinks", "add("),
    Missing("Lengths", "q_len("),
    Missing("Dropout", "begin_head("),
    Missing("MaxScore", "see_weights("),
    Missing("Rows", "head("),
    Missing("Function", "kListed"),
    Missing("Bias", "at("),
    Missing("Splits", "end_block("),
    Missing("Splits", "count(", SHORT, Sm90Features(decode=True)),
    Missing("Splits", "partial(", SHORT, EVEN),
    Missing("Descale", "of_values("),
    Missing("Rescale", "try_stale_max(Block"),
    Missing("Copy", "store(", UNIFIED),
    Missing("Pages", "load("),
    Missing("PingPong", "finish("),
    Missing("TileOrder", "request("),
    Missing("Output", "store("),
    Missing("Queries", "expect("),
    Missing("FirstBlock", "run("),
    Missing("Schedule", "run("),
    Missing("Consumer", "release_k() {"),
    Missing("Consumer", "own_o_tile("),
    Missing("Producer", "prefetch_q("),
]


def first_error(source: str, include: Path = INCLUDE_DIR, arch: str = "sm_90a") -> str:
    with pytest.raises(CompileError) as error:
        compile_to_ptx(source, arch=arch, name="broken", include_dir=include)
    return error.value.log.split("error:")[1].split("\n")[0]


@pytest.mark.parametrize("missing", MISSING, ids=lambda m: f"{m.slot}-{m.member.rstrip(' {(')}")
def test_a_variant_that_lacks_a_member_is_named_first(missing: Missing, tmp_path: Path) -> None:
    include = edited_headers([missing.edit], tmp_path)
    assert f'static assertion failed with "{missing.slot}: ' in first_error(missing.source, include)


def test_splits_that_say_no_parts_are_named_where_parts_are_combined(tmp_path: Path) -> None:
    edit = Edit("sm90/splits.cuh", " end_split(", " no_end_split(", after="struct Even")
    include = edited_headers([edit], tmp_path)
    assert '"Splits: ' in first_error(
        combine_unit(DType.BF16, EVEN, 64, 128, "sm_90a").source, include
    )


def test_every_slot_is_tried() -> None:
    slots = re.findall(r"using (\w+) = ", unit_of(EVERY_SWITCH).source + unit_of(UNIFIED).source)
    assert {missing.slot for missing in MISSING} >= {*slots} - {"Roles"}


VERBS, PRODUCER = "sm90/verbs.cuh", "sm90/producer.cuh"


def in_step(old: str, new: str) -> Edit:
    return Edit(VERBS, old, new, after="void serial_step(")


MIXED_UP = {
    "V for K": in_step("c.issue_scores(s, c.q(), c.k())", "c.issue_scores(s, c.q(), c.v())"),
    "K for V": in_step("(c.o(), p, c.v())", "(c.o(), p, c.k())"),
    "K for Q": in_step("c.issue_scores(s, c.q(), c.k())", "c.issue_scores(s, c.k(), c.q())"),
    "a tile for a barrier": Edit(PRODUCER, "= to.full(ring_.stage)", "= to.tile(ring_.stage)"),
    "a barrier for a tile": Edit(PRODUCER, "= to.tile(ring_.stage)", "= to.full(ring_.stage)"),
    "Q for O": in_step("c.rescale(c.o(), block)", "c.rescale(c.q(), block)"),
}


@pytest.mark.parametrize("name", MIXED_UP)
def test_one_operand_for_another_does_not_compile(name: str, tmp_path: Path) -> None:
    first_error(unit_of(EVERY_SWITCH).source, edited_headers([MIXED_UP[name]], tmp_path))


NUMBERS = [
    ("kWarpgroupRows", "rows of a warpgroup and of a warp"),
    ("kWarpRows", "rows of a warpgroup and of a warp"),
    ("kTileRows", "rows of a tile"),
    ("kBarrierBytes", "shared memory of a CTA"),
    ("kSmemBytes", "shared memory of a CTA"),
    ("kPanelColumns", "columns of a panel"),
    ("kQBoxHeads", "heads of a box of Q"),
    ("kQBoxQueries", "rows of a box of Q"),
    ("kOBoxHeads", "rows of a box of O"),
    ("kOBoxQueries", "rows of a box of O"),
    ("kBoxKeys", "keys of a box of K or V"),
]


def doubled(source: str, number: str) -> str:
    changed, count = re.subn(rf"int {number} = (\d+);", rf"int {number} = 2 * \1;", source)
    assert count == 1
    return changed


@pytest.mark.parametrize(("number", "message"), NUMBERS)
@pytest.mark.parametrize("config", [EVERY_SWITCH, UNIFIED], ids=["specialised", "unified"])
def test_a_number_that_host_and_kernel_do_not_share_is_named(
    config: HopperForwardKernelConfig, number: str, message: str
) -> None:
    assert f'"{message}"' in first_error(doubled(unit_of(config).source, number))


def test_the_first_family_knows_its_shared_memory() -> None:
    source = doubled(unit_of(get_ladder()[0].config).source, "kSmemBytes")
    assert "as much shared memory as its tiles take" in first_error(source, arch="sm_80")


@pytest.mark.parametrize(
    ("config", "features"),
    [
        (SHORT, EVEN),
        (SHORT, Sm90Features(decode=True, heads_together=7)),
        (PER_BATCH, Sm90Features(per_batch=True, heads_together=4)),
        (PER_BATCH, Features(per_batch=True, page_keys=16)),
    ],
)
def test_they_agree_whatever_features_ask(config: KernelConfig, features: Features) -> None:
    compile_to_ptx(unit_of(config, features).source, arch="sm_90a", name="asked")

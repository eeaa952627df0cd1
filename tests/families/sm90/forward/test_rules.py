# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.errors import KernelConfigError
from flash_attention.families.sm90.forward.config import register_limit, registers_needed
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig, TileOrder
from tests.hopper_configs import EVERY_SWITCH
from tests.unchecked import unchecked

PLAIN = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 1)
VALID = replace(EVERY_SWITCH, dtype=DType.FP16, prefetch_q=False)


def test_valid_configs_pass() -> None:
    heads_one_at_a_time = replace(VALID, group_mib=0)
    for config in (PLAIN, replace(PLAIN, tma=True), VALID, heads_one_at_a_time):
        assert config.broken_rule() is None
        config.check()


def assert_broken(
    base: HopperForwardKernelConfig, change: dict[str, Any], rule: str, says: str
) -> None:
    with pytest.raises(KernelConfigError) as error:
        replace(base, **change)
    assert error.value.rule == rule
    assert says in str(error.value)
    assert f"[rule: {rule}]" in str(error.value)


@pytest.mark.parametrize(
    ("change", "rule", "says"),
    [
        ({"dtype": "fp16"}, "dtype", "use DType.FP16 or DType.BF16"),
        ({"d_head": 72}, "d_head", "d_head=72: use a multiple of 16 from 16 to 256"),
        ({"consumers": 4}, "consumers", "use one of 1, 2, 3"),
        ({"B_c": 100}, "B_c", "B_c=100: use a multiple of 16 from 16 to 256"),
        ({"B_c": 272}, "B_c", "use a multiple of 16 from 16 to 256"),
        ({"stages": 0}, "stages", "use one of 1, 2, 3, 4"),
        ({"stages": True}, "stages", "use one of 1, 2, 3, 4"),
        ({"tma": 1}, "tma", "use True or False"),
        (
            {"tile_order": 1},
            "tile_order",
            "use TileOrder.ONE_EACH or TileOrder.PERSISTENT or TileOrder.DYNAMIC",
        ),
        ({"group_mib": 4097}, "group_mib", "use an integer from 0 to 4096"),
        ({"group_mib": -1}, "group_mib", "use an integer from 0 to 4096"),
        (
            {"tile_order": TileOrder.PERSISTENT},
            "group_mib",
            "this is TileOrder.PERSISTENT: set group_mib=0",
        ),
        (
            {"tile_order": TileOrder.ONE_EACH},
            "group_mib",
            "group_mib=64 is for tile_order=TileOrder.DYNAMIC, this is TileOrder.ONE_EACH",
        ),
        ({"rescale_threshold": 16}, "rescale_threshold", "use an integer from 0 to 15"),
        ({"rescale_threshold": 0}, "stale_max_needs_threshold", "set rescale_threshold to 1"),
        ({"narrow_keys": 40}, "narrow_keys", "use a multiple of 16"),
        ({"narrow_keys": 128}, "narrow_keys", "multiple of 16 below B_c=128"),
        ({"tma": False}, "specialised_needs_tma", "set tma=True or specialised=False"),
        ({"consumers": 1}, "ping_pong_needs_consumers", "use 2 or 3 consumers"),
        (
            {"consumers": 1, "ping_pong": False},
            "skip_empty_needs_consumers",
            "use 2 or 3 consumers or set skip_empty=False",
        ),
        ({"direct_output": True}, "direct_output", "set one of them to False"),
        (
            {"wide_panels": True},
            "wide_panels",
            "panels of d_head=128 have 64 columns anyway: set wide_panels=False",
        ),
        ({"B_c": 192}, "shared_memory", "fewer stages or consumers, or own_output=False"),
    ],
)
def test_each_rule_is_named_and_says_what_to_change(
    change: dict[str, Any], rule: str, says: str
) -> None:
    assert_broken(VALID, change, rule, says)


@pytest.mark.parametrize(
    ("change", "rule", "says"),
    [
        ({"stages": 2}, "stages_need_specialised", "set specialised=True or stages=1"),
        ({"ping_pong": True}, "ping_pong_needs_specialised", "or ping_pong=False"),
        ({"overlap": True}, "overlap_needs_specialised", "or overlap=False"),
        (
            {"tile_order": TileOrder.PERSISTENT},
            "tile_order_needs_specialised",
            "tile_order=TileOrder.PERSISTENT is for kernels with a producer: "
            "set specialised=True or tile_order=TileOrder.ONE_EACH",
        ),
        ({"own_output": True}, "own_output_needs_specialised", "or own_output=False"),
        ({"direct_output": True}, "direct_output_needs_specialised", "or direct_output=False"),
        ({"rescale_threshold": 8}, "rescale_threshold_needs_specialised", "rescale_threshold=0"),
        ({"narrow_keys": 64}, "narrow_keys_needs_specialised", "or narrow_keys=0"),
        ({"stale_max": True}, "stale_max_needs_specialised", "or stale_max=False"),
        ({"prefetch_q": True}, "prefetch_q_needs_specialised", "or prefetch_q=False"),
        ({"skip_empty": True}, "skip_empty_needs_specialised", "or skip_empty=False"),
        ({"wide_panels": True}, "wide_panels_needs_specialised", "or wide_panels=False"),
        ({"kv_8_bit": True}, "kv_8_bit_needs_specialised", "or kv_8_bit=False"),
        ({"q_8_bit": True}, "q_8_bit_needs_specialised", "or q_8_bit=False"),
        ({"scores_8_bit": True}, "scores_8_bit_needs_specialised", "or scores_8_bit=False"),
    ],
)
def test_what_needs_a_producer_says_so(change: dict[str, Any], rule: str, says: str) -> None:
    assert_broken(PLAIN, change, rule, says)


@pytest.mark.parametrize("name", sorted(set(ARCHES) - {"sm_90"}))
def test_only_one_architecture_has_these_instructions(name: str) -> None:
    with pytest.raises(KernelConfigError, match=f"this is {name}: use a FlashForward") as error:
        VALID.check(ARCHES[name])
    assert error.value.rule == "architecture"


def test_shared_memory_counts_every_buffer() -> None:
    wide = replace(VALID, d_head=192, own_output=False, B_c=112)
    assert wide.smem_bytes() == 221440
    assert wide.broken_rule() is None
    violation = unchecked(wide, B_c=128).broken_rule()
    assert violation is not None
    assert violation.rule == "shared_memory"
    assert "246016 bytes" in violation.message
    assert f"{246016 - 232448} more than a CTA of sm_90" in violation.message
    assert violation.message.endswith("use a smaller B_c, fewer stages or consumers")


@pytest.mark.parametrize(
    ("consumers", "d_head", "fitting", "too_many"),
    [
        (2, 64, (128, 192), 256),
        (2, 128, (128, 160, 176), 192),
        (2, 192, (112, 128), 160),
        (2, 256, (80, 96), 112),
        (3, 64, (64, 128), 160),
        (3, 128, (64, 80), 96),
    ],
)
def test_the_register_estimate_agrees_with_the_compiler(
    consumers: int, d_head: int, fitting: tuple[int, ...], too_many: int
) -> None:
    def spare(B_c: int) -> int:
        cfg = unchecked(VALID, consumers=consumers, d_head=d_head, B_c=B_c)
        return register_limit(cfg) - registers_needed(cfg)

    assert all(spare(B_c) >= 0 for B_c in fitting)
    assert spare(too_many) < 0


def test_too_many_registers_name_the_limit() -> None:
    three = {"consumers": 3, "B_c": 96, "own_output": False}
    assert_broken(VALID, three, "registers", "need about 168 registers")
    assert_broken(VALID, three, "registers", "has 160: use a smaller B_c or fewer consumers")


def test_without_a_producer_the_threads_share_the_register_file() -> None:
    assert [register_limit(unchecked(PLAIN, consumers=n)) for n in (1, 2, 3)] == [255, 255, 168]

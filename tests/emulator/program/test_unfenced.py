# SPDX-License-Identifier: Apache-2.0
"""Registers that a wgmma uses without a fence: hand-written sequences, and real kernels."""

from __future__ import annotations

import pytest

from flash_attention.families.registry import unit_of
from flash_attention.launch.emulation import compiled_unit
from ptx_emulator.program.blocks import build_blocks
from ptx_emulator.program.unfenced import unfenced_products
from ptx_emulator.ptx.parse import parse
from tests.emulator.hopper_mutations import LAST, PING_PONG
from tests.emulator.planting import Scene

REGISTERS = ".reg .pred p; .reg .b32 a0, a1, s0, s1, t0, t1, z; .reg .b64 x, y;"
ISSUE = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
FENCE = "wgmma.fence.sync.aligned;"
PRODUCT = f"{ISSUE} {{s0,s1}}, {{a0,a1}}, y, p,1,1;"
WAITED = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


def found(text: str) -> list[tuple[int, str | None, int | None]]:
    (kernel,) = parse(f".entry k {{ {REGISTERS} {text} ret; }}").values()
    missing = unfenced_products(kernel, build_blocks(kernel))
    return [(item.index, item.register, item.accessed) for item in missing]


def test_the_first_product_needs_a_fence() -> None:
    assert found(PRODUCT) == [(0, None, None)]
    assert found(f"{FENCE} {PRODUCT}") == []


def test_a_fence_that_one_path_leaves_out() -> None:
    assert found(f"@p bra J; {FENCE} J: {PRODUCT}") == [(2, None, None)]
    assert found(f"@p bra J; {FENCE} bra K; J: {FENCE} K: {PRODUCT}") == []


@pytest.mark.parametrize("register", ["a0", "a1", "s0", "s1"])
@pytest.mark.parametrize("access", ["mov.b32 %s, 0;", "mov.b32 z, %s;", "add.u32 z, %s, 1;"])
def test_an_access_since_the_last_product(register: str, access: str) -> None:
    before = f"{FENCE} {PRODUCT} {WAITED} {access % register}"
    assert found(f"{before} {PRODUCT}") == [(5, register, 4)]
    assert found(f"{before} {FENCE} {PRODUCT}") == []


def test_products_in_a_row_and_other_registers_need_no_fence() -> None:
    other = f"{ISSUE} {{t0,t1}}, x, y, p,1,1;"
    assert found(f"{FENCE} {PRODUCT} {PRODUCT} {other} {WAITED} {PRODUCT}") == []
    assert found(f"{FENCE} {PRODUCT} {WAITED} mov.b32 t0, 0; {PRODUCT}") == []
    assert found(f"{FENCE} {PRODUCT} {WAITED} mov.b32 t0, 0; {other}") == [(5, "t0", 4)]


def test_what_the_compiler_moves_behind_a_fence() -> None:
    assert found(f"{FENCE} mov.b32 s0, 0; {PRODUCT}") == []
    assert found(f"{FENCE} {PRODUCT} {WAITED} mov.b32 s0, 0; {PRODUCT}") != []


def test_what_a_loop_carries_round() -> None:
    loop = f"{FENCE} L: %s {PRODUCT} {WAITED} mov.b32 a0, 0; @p bra L;"
    assert found(loop % "") == [(1, "a0", 4)]
    assert found(loop % FENCE) == []


@pytest.mark.parametrize("scene", [PING_PONG, LAST], ids=lambda scene: f"rung {scene.rung}")
def test_every_fence_of_a_real_kernel_that_follows_an_access_is_missed(scene: Scene) -> None:
    """A fence between products that nothing else separates orders nothing more."""
    lines = compiled_unit(unit_of(scene.config)).ptx.splitlines()
    fences = [number for number, line in enumerate(lines) if "wgmma.fence" in line]
    missed = []
    for number in (None, *fences):
        text = "\n".join(line for n, line in enumerate(lines) if n != number)
        (kernel,) = parse(text).values()
        missed.append(bool(unfenced_products(kernel, build_blocks(kernel))))
    assert not missed[0]
    assert sum(missed) >= len(fences) - 2

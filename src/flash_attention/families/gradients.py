# SPDX-License-Identifier: Apache-2.0
"""Which calls have gradients, by the families of the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flash_attention.call.backward_call import BackwardProblem
from flash_attention.call.call import Call
from flash_attention.call.strict import kernels_compute
from flash_attention.call.tensors import check_recordable
from flash_attention.errors import UnsupportedError
from flash_attention.families.config import KernelConfig
from flash_attention.families.passes import Pass
from flash_attention.families.registry import families_of
from flash_attention.families.sm90.mla.d_heads import is_mla
from flash_attention.program.bias import tile_slot
from flash_attention.program.nodes import Gathered, How


def widest_gradient() -> int:
    """Return the largest head dimension that kernels compute gradients of."""
    return max(family.widest() for family in families_of(Pass.BACKWARD))


# As torch.compiler.assume_constant_result marks a function, but without importing the compiler.
widest_gradient._dynamo_marked_constant = True  # type: ignore[attr-defined]


def gathering_arches() -> list[str]:
    """Return the architectures with kernels for gradients of captured tensors."""
    return [family.name for family in families_of(Pass.BACKWARD) if family.gathers]


def slot_by_tiles(
    problem: BackwardProblem, slots: Sequence[int], config: KernelConfig | None
) -> int | None:
    """Return which of the captured tensors in `slots` gets its gradient as tiles of dS, or None if
    none does. The kernels are those of a config, or of the one that is chosen."""
    program = problem.program
    slot = None if program is None else tile_slot(program)
    if program is None or slot not in slots:
        return None
    gathered = tuple(Gathered(each, How.ADD) for each in slots)
    problem = replace(problem, program=replace(program, gathered=gathered))
    for family in families_of(Pass.BACKWARD):
        is_meant = config is None or isinstance(config, family.config_type)
        if is_meant and family.stores_tiles(problem, config):
            return slot
    return None


def check_differentiable(call: Call) -> None:
    """Raise UnsupportedError for a call whose gradients cannot be computed."""
    check_recordable(call)
    d_head, d_v = call.q.shape[-1], call.v.shape[-1]
    if is_mla(d_head, d_v) and d_head > widest_gradient() and kernels_compute(call.q):
        raise UnsupportedError(
            f"q has d_head {d_head} and v {d_v} (MLA), and no kernel computes their gradients; call"
            " under torch.no_grad(), or pass the heads of k and v that the latent columns stand for"
        )

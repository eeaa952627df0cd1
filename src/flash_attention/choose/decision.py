# SPDX-License-Identifier: Apache-2.0
"""Which kernel runs a call, by which rule, and whether it may: all that precedes a launch plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import torch
from torch import Tensor

from flash_attention.arch import Arch
from flash_attention.call import options as option_checks
from flash_attention.call import tensors as checks
from flash_attention.call.call import Extras, Options
from flash_attention.call.features import Features
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import Packing, TensorView
from flash_attention.choose.tables import NO_DEVICE, Device, choose
from flash_attention.families import fit as fit_checks
from flash_attention.families.sm90.forward.config import HOPPER
from flash_attention.families.sm90.forward.short_queries import select_chunks
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.kernel_configs import KernelConfig


class Rule(Enum):
    """What chose a config."""

    GIVEN = "given by the caller"
    SHORT_QUERIES = "select_short"
    TABLE = "table"
    RULE_OF_THUMB = "select"


@dataclass(frozen=True)
class Decision:
    """A config, its architecture and the chunks of keys, if they are split."""

    config: KernelConfig
    arch: Arch
    chunks: Chunks | None
    rule: Rule
    reason: str = field(default="", compare=False)  # what tables had to say

    def features(self, problem: Problem, return_lse: bool = False) -> Features:
        """What the kernel must be able to do."""
        asked = problem.features_for(self.config, return_lse)
        return asked if self.chunks is None else self.chunks.features(asked)


def new_output(q: Tensor, d_v: int, device: str | None = None) -> Tensor:
    """Room for an output of `d_v` columns; strided like q if that has as many."""
    if q.shape[-1] == d_v:
        return torch.empty_like(q, device=device)
    return q.new_empty((*q.shape[:-1], d_v), device=device)


def views_of(*tensors: Tensor) -> tuple[TensorView, ...]:
    """q, k, v and o, as many as there are, described by name."""
    return tuple(TensorView.of(name, t) for name, t in zip("qkvo", tensors, strict=False))


def check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    options: Options,
    extras: Extras,
    device: torch.device | None = None,
) -> tuple[Problem, list[TensorView]]:
    """The rules that a call obeys whatever the kernel; its problem, and q, k, v and o.

    Tensors without memory pass as if they were on `device`. A packed view has a batch dimension.
    """
    option_checks.check_options(options)
    q_view, k_view, v_view = inputs = views_of(q, k, v)
    if device is not None and all(view.device.type == "meta" for view in inputs):
        q_view, k_view, v_view = (replace(view, device=device) for view in inputs)
    checks.check_inputs(q_view, k_view, v_view, Packing.of(extras))
    q_view, k_view, v_view = inputs
    option_checks.check_extras(extras, options, q_view, k_view)
    if o is None:
        output = TensorView.of("o", new_output(q, v.shape[-1], device="meta"))
        output = replace(output, device=q.device)
    else:
        output = TensorView.of("o", o)
        checks.check_kernel_output(output, q_view, v_view)
    problem = Problem.from_tensors(q_view, k_view, v_view, options=options, extras=extras)
    return problem, [view.with_batch for view in (*inputs, output)]


def decide(
    config: KernelConfig | None,
    problem: Problem,
    views: Sequence[TensorView],
    options: Options,
    arch: Arch | None,
    num_sms: int,
    device: Device = NO_DEVICE,
    *,
    may_tune: bool = False,
) -> Decision:
    """The config that runs a checked call: `config` if given, else what is selected.

    Without an `arch` that of the config's family is meant, or Hopper. Raises what does not fit.
    Tables are asked for a device; with `may_tune` a problem may be tuned first, inside of `tuning`.
    """
    split_keys = options.split_keys
    if config is None:
        short = select_chunks(problem, arch or HOPPER, num_sms, split_keys)
        if short is None:
            decision = _select(problem, arch or HOPPER, device, may_tune)
        else:
            decision = Decision(short[0], arch or HOPPER, short[1], Rule.SHORT_QUERIES)
        decision.config.check(decision.arch)
    else:
        arch = arch or config.default_arch
        config.check(arch)
        chunks = None if split_keys is None else Chunks.of_keys(problem, config.B_c, split_keys)
        decision = Decision(config, arch, chunks, Rule.GIVEN)
    fit_checks.check_config_fits(decision.config, problem, views, decision.chunks)
    return decision


def _select(problem: Problem, arch: Arch, device: Device, may_tune: bool) -> Decision:
    choice = choose(problem, arch, device, may_tune=may_tune)
    rule = Rule.TABLE if choice.measured else Rule.RULE_OF_THUMB
    return Decision(choice.config, arch, None, rule, choice.reason)

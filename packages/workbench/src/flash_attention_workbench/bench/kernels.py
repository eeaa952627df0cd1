# SPDX-License-Identifier: Apache-2.0
"""The kernels that our contenders of a grid launch, planned without a GPU and without memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import torch

from flash_attention.call.any_call import AnyCall, check_any_call
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.call.tangent_call import TangentCall
from flash_attention.choose.heuristic import select_config
from flash_attention.choose.rules import choose
from flash_attention.compile.unit import Unit
from flash_attention.errors import FlashAttentionError
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import family_of
from flash_attention.kernel_configs import DType, KernelConfig, config_for
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Measured, Point


def units_of_grid(
    points: Iterable[Point],
    dtype: DType,
    measured: Measured,
    setting: Setting,
    configs: Sequence[KernelConfig] = (),
    *,
    heuristic: bool = False,
) -> tuple[Unit, ...]:
    """The kernels of all points: of what is chosen, of configs, and with `heuristic` of what is
    chosen without tables. What is refused has none; the measurement says why."""
    units: dict[Unit, None] = {}
    for point in points:
        fitting = [config for config in configs if config.d_head == point.d_head]
        for call in calls_of(point, dtype, measured):
            units |= dict.fromkeys(_units(call, setting, fitting, heuristic))
    return tuple(units)


def calls_of(point: Point, dtype: DType, measured: Measured) -> Iterator[AnyCall]:
    """Yield what our contenders of a point call. Nobody has written the tensors."""
    case = Case.unwritten(point, dtype)
    call = Call(case.q, case.k, case.v, case.out, **case.keywords)
    if measured.pass_ is Pass.BACKWARD:
        yield call.with_lse()
        heads_and_rows = (case.q.shape[-2], case.q.shape[-3])
        lse = torch.empty(*case.q.shape[:-3], *heads_and_rows)
        for deterministic in (False, True):
            yield BackwardCall(case.q, call, lse, deterministic=deterministic)
        return
    yield call
    if measured is Measured.TANGENT:
        yield TangentCall(call._replace(out=None), case.q, case.k, case.v)
    if point.window:
        yield call._replace(window=None)


def _units(
    call: AnyCall, setting: Setting, configs: Iterable[KernelConfig], heuristic: bool
) -> Iterator[Unit]:
    with suppress(FlashAttentionError):
        problem, views = check_any_call(call)
        wanted: list[KernelConfig | None] = [None]
        pass_ = family_of(choose(problem, setting, views).config).pass_
        wanted += [config for config in configs if family_of(config).pass_ is pass_]
        wanted += [select_config(problem, setting.arch)] if heuristic else []
        for config in wanted:
            with suppress(FlashAttentionError):
                given = None if config is None else config_for(config, problem, views)
                choice = choose(problem, setting, views, config=given)
                yield from (step.unit for step in choice.recipe(problem, views).steps)

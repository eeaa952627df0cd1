# SPDX-License-Identifier: Apache-2.0
"""The kernels that our contenders of a grid launch, planned without a GPU and without memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from flash_attention.call.backward_call import ALL, BackwardProblem
from flash_attention.call.backward_checks import views_of_pass
from flash_attention.call.call import Call
from flash_attention.call.checks import check_call
from flash_attention.call.problem import Problem
from flash_attention.call.tangent_call import TangentProblem, views_with_tangents
from flash_attention.call.tensors import TensorView
from flash_attention.choose.dense import CPU
from flash_attention.choose.heuristic import select_config
from flash_attention.choose.rules import choose
from flash_attention.compile.unit import Unit
from flash_attention.errors import FlashAttentionError
from flash_attention.families.passes import Pass
from flash_attention.families.recipe import Setting
from flash_attention.families.registry import family_of, pass_of
from flash_attention.kernel_configs import DType, KernelConfig, config_for
from flash_attention_workbench.bench.case import Case
from flash_attention_workbench.bench.grid import Measured, Point

Planned = tuple[Problem, Sequence[TensorView], bool]
"""A problem, views of its tensors, and whether the log-sum-exp is returned."""


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
        for problem, views, return_lse in _problems(point, dtype, measured):
            given = replace(setting, return_lse=return_lse)
            units |= dict.fromkeys(_units(problem, views, given, fitting, heuristic))
    return tuple(units)


def _problems(point: Point, dtype: DType, measured: Measured) -> Iterator[Planned]:
    """Yield what is computed at a point."""
    case = Case.unwritten(point, dtype)
    call = Call(case.q, case.k, case.v, case.out, **case.keywords)
    with suppress(FlashAttentionError):
        problem, views = check_call(call, CPU)
        yield problem, views, measured.pass_ is Pass.BACKWARD
        if measured.pass_ is Pass.BACKWARD:
            for deterministic in (False, True):
                gradients = BackwardProblem.of_pass(problem, ALL, deterministic)
                yield gradients, views_of_pass(call, views), False
        elif measured is Measured.TANGENT:
            yield TangentProblem.of_pass(problem), views_with_tangents(views), False
        elif point.window:
            yield *check_call(call._replace(window=None), CPU), False


def _units(
    problem: Problem,
    views: Sequence[TensorView],
    setting: Setting,
    configs: Iterable[KernelConfig],
    heuristic: bool,
) -> Iterator[Unit]:
    wanted: list[KernelConfig | None] = [None]
    wanted += [config for config in configs if family_of(config).pass_ is pass_of(problem)]
    with suppress(FlashAttentionError):
        wanted += [select_config(problem, setting.arch)] if heuristic else []
    for config in wanted:
        with suppress(FlashAttentionError):
            given = None if config is None else config_for(config, problem, views)
            choice = choose(problem, setting, views, config=given)
            yield from (step.unit for step in choice.recipe(problem, views).steps)

# SPDX-License-Identifier: Apache-2.0
"""What functions cost beside the kernels of attention: the planning of blocks, and first calls.

First calls are timed in processes of their own, whose caches are empty or hold what the process
before compiled. CUDA is up before a call is timed, and imports are told apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import median

import torch

from flash_attention.call.call import Call
from flash_attention.families.recipe import Step
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import Plan
from flash_attention_workbench.bench.function_case import BUILT_IN, OURS, FunctionCase
from flash_attention_workbench.bench.function_run import How
from flash_attention_workbench.bench.functions import PASSES, FunctionPoint
from flash_attention_workbench.bench.grid import TOKENS, Measured
from flash_attention_workbench.bench.peers.flex_functions import FLEX, block_mask
from flash_attention_workbench.bench.timing import Contender, time_in_turn

PLANNED, PLANNED_TOKENS = ("causal", "documents"), (16384, 131072)
FLEX_TOKENS = 16384  # torch's builder stores a byte and more for every query and key
FIRST = ("causal", "alibi_causal", "documents")
CACHES = ("FLASH_ATTENTION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
NEW, KEPT = "new function", "from disk in a new process"
IMPORT = "import"
PATIENCE_S = 300.0
PROGRAM = """
import time
begin = time.perf_counter()
import torch
middle = time.perf_counter()
import flash_attention
end = time.perf_counter()
from flash_attention_workbench.bench.function_costs import report
from flash_attention_workbench.child import end_with_parent
end_with_parent({pipe})
report({contender!r}, 1e3 * (middle - begin if {contender!r} == {flex!r} else end - middle))
"""


@torch.no_grad()
def plans_ms(how: How) -> dict[str, dict[str, float]]:
    """Milliseconds in which blocks are planned on the device, by function and tokens; and, of
    torch's block mask, which the host waits for."""
    found: dict[str, dict[str, float]] = {}
    for function in PLANNED:
        for tokens in PLANNED_TOKENS:
            point = FunctionPoint(function, 128, tokens, batch=1, heads=16)
            case = FunctionCase.of(point, how.device)
            contender = planning(case.forward_call(OURS))
            contender.run()
            timings = time_in_turn(
                [contender],
                device=how.device,
                repeats=how.repeats,
                check=lambda name, result: None,
                hot=how.hot,
            )
            found.setdefault(function, {})[str(tokens)] = timings[contender.name].median_ms
            if how.flex and tokens <= FLEX_TOKENS:
                build = partial(block_mask, function, case.drawn)
                taken = [_seconds(build, how.device) for _ in range(5)]
                theirs = found.setdefault(f"{function}, {FLEX}", {})
                theirs[str(tokens)] = 1e3 * median(taken)
    return found


def planning(call: Call) -> Contender:
    """Return the contender that runs the kernels of a call that plan its blocks, and no others."""
    plan = Plan(call)
    steps = planning_steps(plan.recipe.steps)
    launcher = Launcher(replace(plan.recipe, steps=steps), plan.device_index, plan.problem)
    launcher.load()
    arguments, _ = plan.prepare(call)
    return Contender("plan", lambda: launcher.launch(arguments))


def planning_steps(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Those of a recipe's kernels that plan blocks."""
    return tuple(s for s in steps if s.unit.name.startswith(("fill_bounds", "list_blocks")))


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """The time until the device is done with what a function does."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    begin = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - begin


def first_calls(contenders: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds of the first calls with functions, by contender, and by what happens: a new
    function, or one that is on disk in a new process. Contenders share the machine."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(contenders, pool.map(_new_and_kept, contenders), strict=True))


def _new_and_kept(contender: str) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        return {caches: _elsewhere(contender, folder) for caches in (NEW, KEPT)}


def _elsewhere(contender: str, folder: str) -> dict[str, float]:
    kept = {name: os.path.join(folder, name) for name in CACHES}
    path = os.pathsep.join(filter(None, sys.path))
    its, mine = os.pipe()
    with os.fdopen(its), os.fdopen(mine):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(contender=contender, flex=FLEX, pipe=its)],
            env={**os.environ, **kept, "PYTHONPATH": path},
            pass_fds=[its],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=PATIENCE_S,
        )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def report(contender: str, import_ms: float) -> None:
    """Print the milliseconds of first calls in this process."""
    print(json.dumps({IMPORT: import_ms, **first_calls_here(contender, torch.device("cuda"))}))


def first_calls_here(
    contender: str, device: torch.device, seq: int = 4096, tokens: int = TOKENS
) -> dict[str, float]:
    """Milliseconds of the first calls in this process: of ours without a function, which starts
    what all calls share, and with some functions. A call records its function, or makes its block
    mask; a backward pass comes with the forward pass before it."""
    named = [(BUILT_IN, "causal")] if contender == OURS else []
    named += [(contender, function) for function in FIRST]
    return {
        f"{function if name == contender else name}, {words}": _first_ms(
            name, FunctionPoint(function, 128, seq, tokens // seq, 16, measured), device
        )
        for name, function in named
        for words, measured in PASSES.items()
    }


def _first_ms(name: str, point: FunctionPoint, device: torch.device) -> float:
    with torch.set_grad_enabled(point.measured is Measured.BACKWARD):
        case = FunctionCase.of(point, device)
        return 1e3 * _seconds(lambda: case.contender(name).run(), device)

# SPDX-License-Identifier: Apache-2.0
"""Launches: which kernels, in which order, with which parameters, on which device and stream."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from flash_attention import attention
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.families.sm90.forward.combine import THREADS
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch import driver, tensor_map
from flash_attention.launch import launcher as launching
from flash_attention.launch.device import EMULATED_SMS
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import known_plan, plan_for
from flash_attention.launch.tile_counters import tile_counter
from tests.launch.calls import CONFIG, DYNAMIC, HOPPER, UNIFIED, call_with, dense, grouped
from tests.launch.stand_in import STREAMS, Gpus

SOURCE = str(Path(launching.__file__).parents[1])


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    made.install(monkeypatch)
    return made


def launcher_of(plan: Plan, device_index: int = 0) -> Launcher:
    """A launcher of the plan's kernels that is ready to launch them on a device."""
    made = Launcher(plan.recipe, device_index)
    made.load()
    return made


def test_a_launch_passes_four_maps_and_then_the_arguments(gpus: Gpus) -> None:
    q, k, v = grouped()
    tensors = (q, k, v, torch.zeros_like(q))
    call = Call(*tensors)
    plan = Plan(call, DYNAMIC)
    launcher = launcher_of(plan)
    described = plan.recipe.steps[0].maps
    counters = set()
    for _ in range(2):
        arguments = plan.bind(call)
        launcher.launch(arguments)
        seen = gpus.launches[-1]
        assert seen.maps == [
            (described[name], tensor.data_ptr())
            for name, tensor in zip("qkvo", tensors, strict=True)
        ]
        assert [each.box for each, _ in seen.maps] == [(64, 1, n, 1) for n in (64, 128, 128, 16)]
        assert seen.arguments_at == ctypes.addressof(arguments)
        assert [getattr(seen.arguments, name) for name in "qkvo"] == [
            tensor.data_ptr() for tensor in tensors
        ]
        assert (seen.function, seen.stream) == (plan.recipe.steps[0].unit.name, STREAMS)
        assert seen.shape == (EMULATED_SMS, 1, 1, 384, 1, 1, DYNAMIC.smem_bytes())
        counters.add(seen.arguments.tile_counter)
    assert counters == {tile_counter(0, STREAMS, 2)}
    assert len(gpus.encoded) == 4  # once for both launches


def test_a_tensor_elsewhere_gets_a_map_of_its_own(gpus: Gpus) -> None:
    q, k, v = grouped()
    plan = Plan(Call(q, k, v, torch.zeros_like(q)), HOPPER)
    launcher = launcher_of(plan)
    others = q.clone(), k.clone(), v.clone(), torch.zeros_like(q)
    for tensors in ((q, k, v, torch.zeros_like(q)), others):
        launcher.launch(plan.bind(Call(*tensors)))
        assert [address for _, address in gpus.launches[-1].maps] == [
            tensor.data_ptr() for tensor in tensors
        ]


def test_maps_of_ever_new_tensors_are_not_kept_without_end(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (launching, tensor_map):
        monkeypatch.setattr(module, "MAX_ENCODED", 2)
    q, k, v = grouped()
    o = torch.zeros_like(q)
    plan = Plan(Call(q, k, v, o), HOPPER)
    launcher = launcher_of(plan)
    queries = [q, q.clone(), q.clone()]
    for each, encoded in ((0, 4), (1, 5), (0, 5), (2, 6), (0, 7)):
        launcher.launch(plan.bind(Call(queries[each], k, v, o)))
        addresses = [address for _, address in gpus.launches[-1].maps]
        assert addresses == [tensor.data_ptr() for tensor in (queries[each], k, v, o)]
        assert len(gpus.encoded) == encoded


@pytest.mark.parametrize("config", [CONFIG, UNIFIED], ids=["first", "hopper"])
def test_a_kernel_without_tma_gets_its_arguments_alone(config: KernelConfig, gpus: Gpus) -> None:
    call = call_with(*dense())
    plan = Plan(call, config)
    arguments = plan.bind(call)
    launcher_of(plan).launch(arguments)
    (seen,) = gpus.launches
    assert (seen.maps, seen.arguments_at) == ([], ctypes.addressof(arguments))
    assert seen.arguments.tile_counter is None
    assert gpus.allocated == []


def split_call() -> tuple[Plan, Call]:
    """A call whose keys are split, and its plan: two kernels, the second combines."""
    q, k, v = grouped(seq_q=2, seq_k=300)
    call = Call(q, k, v, torch.zeros_like(q), split_keys=128)
    return Plan(call, HOPPER), call


@pytest.mark.usefixtures("two_launches")
def test_two_kernels_are_launched_in_order_and_share_memory_that_lives_as_long(gpus: Gpus) -> None:
    plan, call = split_call()
    arguments = plan.bind(call)
    launcher_of(plan).launch(arguments)
    main, combine = gpus.launches
    assert [seen.function for seen in (main, combine)] == [s.unit.name for s in plan.recipe.steps]
    assert [seen.early for seen in (main, combine)] == [False, True]
    assert [len(seen.maps) for seen in (main, combine)] == [4, 0]
    assert main.shape == (2 * 3, 1, 1, 384, 1, 1, HOPPER.smem_bytes())
    assert combine.shape == (2 * 6, 1, 1, THREADS, 1, 1, 0)
    assert main.arguments_at == combine.arguments_at == ctypes.addressof(arguments)
    assert main.stream == combine.stream == STREAMS
    (room,) = gpus.allocated
    assert main.scratch_alive
    assert combine.scratch_alive
    assert room[0]() is arguments.memory
    sizes = plan.recipe.scratch
    assert list(sizes) == ["o_partial", "lse_partial"]
    assert gpus.allocated_bytes == [sum(sizes.values())]
    for seen in (main, combine):
        assert seen.arguments.lse_partial - seen.arguments.o_partial == sizes["o_partial"]
    assert main.arguments.o_partial == combine.arguments.o_partial


@pytest.mark.usefixtures("two_launches")
def test_scratch_memory_is_divided_in_the_order_of_a_recipe(gpus: Gpus) -> None:
    plan, call = split_call()
    sizes = dict(reversed([*plan.recipe.scratch.items()]))
    launcher = Launcher(replace(plan.recipe, scratch=sizes), 0)
    launcher.load()
    launcher.launch(plan.bind(call))
    for seen in gpus.launches:
        assert seen.arguments.o_partial - seen.arguments.lse_partial == sizes["lse_partial"]


@pytest.mark.usefixtures("two_launches")
def test_every_launch_of_two_kernels_has_scratch_of_its_own(gpus: Gpus) -> None:
    plan, call = split_call()
    launcher = launcher_of(plan)
    for _ in range(2):
        launcher.launch(plan.bind(call))
    assert len(gpus.allocated) == 2


@pytest.mark.usefixtures("two_launches")
def test_a_device_that_is_not_current_is_made_so_for_the_launch(gpus: Gpus) -> None:
    plan, call = split_call()
    launcher_of(plan, device_index=3).launch(plan.bind(call))
    assert [seen.device for seen in gpus.launches] == [3, 3]
    assert [seen.stream for seen in gpus.launches] == [STREAMS + 3] * 2
    assert [device for _, device in gpus.allocated] == [torch.device("cuda", 3)]
    counting = Plan(call._replace(split_keys=None), DYNAMIC)
    launcher_of(counting, device_index=2).launch(counting.bind(call))
    assert [device for device, _ in gpus.zeros] == [2]
    assert gpus.launches[-1].device == 2
    assert gpus.current == 0


@pytest.mark.usefixtures("two_launches")
def test_loading_readies_every_kernel_on_the_device_with_its_shared_memory(gpus: Gpus) -> None:
    plan, _ = split_call()
    launcher = Launcher(plan.recipe, 1)
    assert (launcher.loaded, gpus.loaded) == (False, [])
    launcher.load()
    main, combine = (step.unit for step in plan.recipe.steps)
    assert gpus.loaded == [main, combine]
    assert gpus.ready == [(main.name, 1, HOPPER.smem_bytes(), 1), (combine.name, 1, 0, 1)]
    assert launcher.loaded
    assert gpus.current == 0


@pytest.mark.usefixtures("two_launches")
def test_calls_of_a_plan_load_its_kernels_once(gpus: Gpus) -> None:
    plan, call = split_call()
    plan.launcher = Launcher(plan.recipe, 0)
    for _ in range(3):
        arguments, *_ = plan.prepare(call)
        plan.launcher.launch(arguments)
    assert [unit.name for unit in gpus.loaded] == [step.unit.name for step in plan.recipe.steps]
    assert len(gpus.launches) == 3 * 2


@pytest.mark.usefixtures("two_launches")
def test_what_failed_to_load_is_loaded_by_the_next_call(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, call = split_call()
    plan.launcher = Launcher(plan.recipe, 0)
    with monkeypatch.context() as patch:
        patch.setattr(launching, "load_unit", {}.__getitem__)
        with pytest.raises(KeyError):
            plan.prepare(call)
    plan.prepare(call)
    assert len(gpus.loaded) == 2


@pytest.mark.usefixtures("two_launches")
@pytest.mark.parametrize("asked", ["", "0", "1"])
def test_ranges_of_the_kernels_names_are_pushed_on_request(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", said.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: said.append("pop"))
    monkeypatch.setenv(launching.NVTX_VARIABLE, asked)
    plan, call = split_call()
    launcher_of(plan).launch(plan.bind(call))
    names = [step.unit.name for step in plan.recipe.steps]
    assert len(names) == len(gpus.launches) == 2
    assert said == ([word for name in names for word in (name, "pop")] if asked == "1" else [])


def test_a_launch_during_another_has_parameters_of_its_own(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = grouped()
    o, sinks = torch.zeros_like(q), [torch.zeros(6) for _ in range(3)]
    calls = [Call(t, k, v, o, s) for t, s in zip((q, q, q.clone()), sinks, strict=True)]
    plan = Plan(calls[0], HOPPER)
    launcher = launcher_of(plan)
    queue, waiting = driver.launch_kernel, calls[1:]

    def interrupted(*asked: Any) -> Any:
        if waiting:
            launcher.launch(plan.bind(waiting.pop()))
        return queue(*asked)

    monkeypatch.setattr(driver, "launch_kernel", interrupted)
    for _ in range(2):
        waiting = calls[1:]
        launcher.launch(plan.bind(calls[0]))
    for seen, call in zip(gpus.launches, [*calls[1:], calls[0]] * 2, strict=True):
        addresses = [tensor.data_ptr() for tensor in call[:5] if tensor is not None]
        assert [address for _, address in seen.maps] == addresses[:4]
        assert [getattr(seen.arguments, name) for name in (*"qkvo", "sinks")] == addresses


def test_calls_of_a_plan_reuse_arguments_and_store_what_is_theirs(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = grouped()
    sinks = [torch.zeros(6) for _ in range(3)]
    calls = [Call(q.clone(), k, v, sinks=each, return_lse=True) for each in sinks]
    plan = Plan(calls[0], HOPPER)
    monkeypatch.setattr(plan, "device_index", 0)
    plan.launcher = Launcher(plan.recipe, 0)
    for call in calls:
        out, lse = plan.run(call)
        seen = gpus.launches[-1].arguments
        assert (seen.q, seen.o, seen.lse) == (call.q.data_ptr(), out.data_ptr(), lse.data_ptr())
        assert call.sinks is not None
        assert seen.sinks == call.sinks.data_ptr()
    assert len({seen.arguments_at for seen in gpus.launches}) == 1


def ours(run: Callable[[], object]) -> list[str]:
    """The functions of the library that something calls, in order."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and SOURCE in code.co_filename:
            called.append(f"{Path(code.co_filename).stem}.{code.co_name}")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.usefixtures("gpus")
@torch.no_grad()
def test_a_known_call_passes_seven_functions_and_its_gradient_as_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    q, k, v = grouped()
    backward = BackwardCall(q.clone(), Call(q, k, v, q.clone()), torch.zeros(1, 6, 100))
    for plan in (plan_for(Call(q, k, v), HOPPER), plan_for(backward, "rung:1")):
        monkeypatch.setattr(plan, "device_index", 0)
        monkeypatch.setattr(plan, "launcher", launcher_of(plan))
        monkeypatch.setattr(plan.preparation, "_launcher", plan.launcher)
    shared = ["known_plan", "kind_and_tensors", "run", "prepare", "launch"]

    def known_gradient() -> None:
        plan = known_plan(backward, "rung:1")
        assert plan is not None
        plan.run(backward)

    # The first notes the plan. An output at a new address has its tensor map encoded.
    forward = min((ours(lambda: attention(q, k, v, config=HOPPER)) for _ in range(9)), key=len)
    gradient = min((ours(known_gradient) for _ in range(9)), key=len)
    assert [name.partition(".")[2] for name in forward] == ["attention", "is_traced", *shared]
    assert [name.partition(".")[2] for name in gradient] == [*shared[:-1], "fill", shared[-1]]

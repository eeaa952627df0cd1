# SPDX-License-Identifier: Apache-2.0
"""Plans for other lengths: they follow from an earlier plan, and are those made from the start."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from flash_attention import UnsupportedError, attention
from flash_attention.arch import ARCHES, Arch
from flash_attention.call.backward_call import BackwardCall
from flash_attention.call.call import Call
from flash_attention.call.tensors import MAX_ROWS, TensorView
from flash_attention.launch import kin, plan, plans
from flash_attention.launch.emulation import Settings, emulate_backward_plan, emulate_plan
from flash_attention.launch.launcher import Launcher
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import forget_plans, known_plan, plan_for
from tests.launch.kin_calls import (
    MAKE,
    MAKE_8_BITS,
    PAGE,
    PAGES,
    D,
    backward,
    filled,
    packed,
    paged,
    rows,
)
from tests.launch.stand_in import Gpus
from tests.launch.test_launcher import ours


@pytest.fixture(autouse=True)
def nothing_planned() -> None:
    forget_plans()


def described(views: Iterable[TensorView]) -> list[TensorView]:
    """Views without the addresses of the tensors that they were made of."""
    return [replace(view, pointer=0) for view in views]


def launched(planned: Plan, call: Call | BackwardCall, gpus: Gpus) -> list[object]:
    """What the driver is told to launch, and the bytes of scratch memory."""
    gpus.launches.clear()
    gpus.allocated_bytes.clear()
    launcher, scratch = planned.launcher, planned.sized.scratch
    launcher._index = scratch._index = 0
    scratch._device = torch.device("cuda:0")
    launcher.load()
    launcher.launch(planned.bind(call), planned.sized)
    assert gpus.launches
    return [
        [(each.function, each.shape, each.early, each.maps) for each in gpus.launches],
        list(gpus.allocated_bytes),
    ]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    made = Gpus()
    made.install(monkeypatch)
    return made


@pytest.mark.parametrize("arch", [ARCHES["sm_80"], ARCHES["sm_90"]], ids=lambda arch: arch.name)
@pytest.mark.parametrize("name", MAKE)
def test_a_plan_for_other_lengths_is_the_one_made_from_the_start(
    name: str, arch: Arch, gpus: Gpus
) -> None:
    r = random.Random(name)
    assert followed([MAKE[name](r) for _ in range(30)], arch, gpus) <= 4


@pytest.mark.parametrize("name", MAKE_8_BITS)
def test_a_plan_of_8_bits_for_other_lengths_is_the_one_made_from_the_start(
    name: str, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "num_sms_of", lambda _: 132)
    r = random.Random(name)
    calls = [MAKE_8_BITS[name](r) for _ in range(30)]
    assert followed(calls, ARCHES["sm_90"], gpus) <= 8


def followed(calls: Iterable[Call | BackwardCall], arch: Arch, gpus: Gpus) -> int:
    """Compare plans that follow from others with those made from the start, and count those that
    follow from none."""
    models: list[Plan] = []
    for call in calls:
        fresh = Plan(call, arch=arch)
        resized = next(filter(None, (model.resized(call) for model in models)), None)
        if resized is None:
            models.append(fresh)
            continue
        assert resized.problem == fresh.problem
        assert (resized.config, resized.idle) == (fresh.config, fresh.idle)
        assert described(resized.views) == described(fresh.views)
        assert bytes(resized.bind(call)) == bytes(fresh.bind(call))
        outputs = (each.preparation.outputs(each.problem) for each in (resized, fresh))
        assert len({str(described(views.values())) for views in outputs}) == 1
        assert launched(resized, call, gpus) == launched(fresh, call, gpus)
        assert resized.recipe.steps == fresh.recipe.steps
        assert resized.recipe.scratch == fresh.recipe.scratch
    return len(models)


def functions(run: Callable[[], object]) -> list[str]:
    """The functions of the library that something calls. Newer Pythons have none for a list."""
    return [name for name in ours(run) if not name.endswith("comp>")]


def longest(call: Call | BackwardCall) -> int:
    return (call.call if isinstance(call, BackwardCall) else call).max_seqlen_q or 0


def forbidden(*_: object, **__: object) -> Any:
    raise AssertionError("this is for calls that no plan is known of")


@pytest.mark.parametrize("name", ["serving", "packed", "backward"])
def test_other_lengths_are_neither_checked_nor_chosen_for_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "rung:1" if name == "backward" else "rung:2"
    r = random.Random(0)

    def made() -> Any:
        call = MAKE[name](r)
        of = call.call if isinstance(call, BackwardCall) else call
        halves = {n: t.half() for n, t in of.tensors().items() if t.dtype == torch.bfloat16}
        wide: dict[str, Any] = {n: t.repeat(*[1] * (t.ndim - 1), 2) for n, t in halves.items()}
        of = of._replace(**wide)
        if not isinstance(call, BackwardCall):
            return of
        return call._replace(call=of, do=call.do.half().repeat(1, 1, 2))

    first, *others = sorted((made() for _ in range(12)), key=longest)
    models = [plan_for(call, config) for call in (first, others.pop())]  # of few rows, and of many
    for each in ("choose", "check_any_call"):
        monkeypatch.setattr(plan, each, forbidden)
    monkeypatch.setattr(Launcher, "__init__", forbidden)
    for call in others:
        found = known_plan(call, config)
        assert found is not None
        assert found not in models
        called = functions(partial(known_plan, call, config))
        assert len(called) <= 4, called  # for lengths that are known now
        assert known_plan(call, config, by_key=False) is found
    more = made()
    called = functions(partial(known_plan, more, config))
    assert len(called) <= 56, called


WIDE = MAX_ROWS // PAGE + 1  # columns, whose memory nobody touches
WRONG: dict[str, dict[str, Any]] = {
    "used": {"seqused_k": torch.ones(4).int()},
    "rows of the table": {"block_table": torch.zeros(2, 9).int()},
    "columns of the table": {
        "block_table": torch.empty(WIDE + 2, dtype=torch.int32).as_strided((3, WIDE), (1, 1))
    },
    "sequences": {"cu_seqlens_q": torch.zeros(5).int()},
    "no starts": {"cu_seqlens_q": torch.zeros(0).int()},
    "rows of v": {"v": torch.zeros(PAGES - 1, PAGE, 2, D).bfloat16()},
    "rows of the output": {"out": torch.zeros(7, 4, D).bfloat16()},
    "sinks": {"sinks": torch.zeros(5)},
    "a negative length": {"max_seqlen_q": -1},
    "a fraction": {"max_seqlen_q": 2.5},
    "a tensor": {"max_seqlen_q": torch.tensor(4)},
    "a length too large": {"max_seqlen_q": MAX_ROWS + 1},
    "no length": {"max_seqlen_q": None},
    "a bound": {"max_seqlen_k": -1},
    "starts of keys": {"cu_seqlens_k": torch.zeros(4).int(), "max_seqlen_k": 3},
    "strides of used": {"seqused_k": torch.ones(6).int()[::2]},
    "strides of the table": {"block_table": torch.zeros(3, 8).int()[:, ::2]},
    "dtype": {"seqused_k": torch.ones(3).long()},
    "device": {"seqused_k": torch.ones(3, device="meta").int()},
}


@pytest.mark.parametrize("name", WRONG)
def test_lengths_that_do_not_fit_together_are_refused_as_those_of_a_first_call(name: str) -> None:
    config = "hopper(BF16, 64, 2, 128, 2): tma+specialised+dynamic_32"
    sinks, out = torch.zeros(4), torch.zeros(6, 4, D).bfloat16()
    call = paged([1, 2, 3], [30, 40, 50], sinks=sinks)._replace(out=out)
    wrong = call._replace(**WRONG[name])
    with pytest.raises(UnsupportedError) as said:
        plan_for(wrong, config)
    more = paged([1, 2, 3, 4], [30, 40, 50, 60], sinks=sinks)
    for known in (call, more._replace(out=torch.zeros_like(more.q))):
        plan_for(known, config)
        assert known_plan(known, config) is not None
    assert known_plan(wrong, config) is None
    with pytest.raises(UnsupportedError) as again:
        plan_for(wrong, config)
    assert str(again.value) == str(said.value)


def test_rows_of_gradients_that_do_not_fit_are_refused_as_those_of_a_first_pass() -> None:
    call = backward([5, 6], [5, 6], dlse=True)
    config = Plan(call, arch=ARCHES["sm_80"]).config
    short = torch.empty(10, 4, D, dtype=torch.bfloat16)
    wrong: list[Any] = [
        call._replace(lse=torch.empty(4, 10)),
        call._replace(lse=torch.empty(4, 12)[:, :11]),
        call._replace(lse=torch.empty(11, 4)),
        call._replace(dlse=torch.empty(4, 10)),
        call._replace(dlse=torch.empty(4, 22)[:, ::2]),
        call._replace(do=short),
        call._replace(call=call.call._replace(out=short)),
    ]
    for each in wrong:
        forget_plans()
        with pytest.raises(UnsupportedError) as said:
            plan_for(each, config)
        for known in (backward([3, 7], [3, 7], dlse=True), call):
            plan_for(known, config)
        assert known_plan(each, config, by_key=False) is None
        with pytest.raises(UnsupportedError) as again:
            plan_for(each, config)
        assert str(again.value) == str(said.value)


def test_what_is_not_known_of_other_lengths_is_planned_from_the_start() -> None:
    arch = ARCHES["sm_90"]
    model = Plan(paged([1, 1], [30, 40]), arch=arch)
    assert model.resized(paged([1], [9])) is not None
    assert model.resized(paged([1500], [1500])) is None  # for which there is another config
    nothing = paged([1], [1])
    assert model.resized(nothing._replace(q=nothing.q[:0])) is None
    one = paged([1], [9])
    assert Plan(one, arch=arch).is_resizable
    apart = torch.randn(1, 3, 4, D).bfloat16()[:, 1]  # three tensors share its memory
    assert apart.stride(0) == 3 * 4 * D
    assert not Plan(one._replace(q=apart), arch=arch).is_resizable
    few = paged([1, 1], [30, 40])._replace(
        out=torch.zeros(4, D).bfloat16().as_strided((1, 4, D), (0, D, 1))
    )
    with pytest.raises(UnsupportedError):
        Plan(few, arch=arch)
    shared = one._replace(out=torch.zeros(4, D).bfloat16().as_strided((1, 4, D), (0, D, 1)))
    assert not Plan(shared, arch=arch).is_resizable


def test_a_plan_of_one_row_serves_many(gpus: Gpus) -> None:
    model = Plan(paged([1], [9]), arch=ARCHES["sm_90"])
    call = paged([3, 10, 1], [77, 90, 1])
    resized = model.resized(call)
    assert resized is not None
    fresh = Plan(call, arch=ARCHES["sm_90"])
    assert launched(resized, call, gpus) == launched(fresh, call, gpus)
    assert bytes(resized.bind(call)) == bytes(fresh.bind(call))


@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
def test_kernels_of_other_lengths_give_what_attention_is(name: str) -> None:
    torch.manual_seed(1)
    model = Plan(paged([1, 1], [30, 40], return_lse=True), arch=ARCHES[name])
    call = filled(paged([1, 7, 1, 16], [33, 7, 100, 52], 9, return_lse=True))
    resized = model.resized(call)
    assert resized is not None
    found = emulate_plan(resized, call, Settings())
    assert list(map(str, found.findings)) == []
    wanted, lse = attention(*call[:3], **call.keywords(), return_lse=True)
    torch.testing.assert_close(found.output, wanted, rtol=1.6e-2, atol=1.6e-2)
    torch.testing.assert_close(found.lse, lse, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
def test_gradients_of_other_lengths_are_those_of_a_plan_from_the_start(name: str) -> None:
    torch.manual_seed(2)
    model = Plan(backward([3], [5]), arch=ARCHES[name])
    call = backward([9, 30, 1], [9, 44, 20])
    out, lse = attention(*filled(call.call)[:3], **call.call.keywords(), return_lse=True)
    do = torch.randn_like(out)
    call = call._replace(do=do, call=call.call._replace(out=out), lse=lse)
    resized = model.resized(call)
    assert resized is not None
    found = emulate_backward_plan(resized, call, Settings())
    assert list(map(str, found.findings)) == []
    q, k, v = (tensor.clone().requires_grad_() for tensor in call.call[:3])
    attention(q, k, v, **call.call.keywords()).backward(call.do)
    for gradient, tensor in zip(found.gradients[:3], (q, k, v), strict=True):
        assert tensor.grad is not None
        assert gradient is not None
        torch.testing.assert_close(gradient, tensor.grad, rtol=3e-2, atol=3e-2)


def test_as_many_plans_are_kept_as_lengths_and_kin(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_LENGTHS", "MAX_KIN"):
        monkeypatch.setattr(kin, limit, 2)
    config = "hopper(BF16, 64, 2, 128, 2): tma+specialised+dynamic_32"
    calls = [paged([1] * count, [30] * count) for count in (1, 2, 3, 4)]
    plan_for(calls[0], config)
    for call in (*calls, *calls):
        assert known_plan(call, config) is not None
    ((found,),) = plans._kindred._kin.values()
    assert len(found.plans) <= 2
    assert len(found.models) == 1
    for heads in (8, 12, 16):  # other kin
        call = calls[0]._replace(q=rows(1, heads))
        plan_for(call, config)
        assert known_plan(call, config) is not None
    (every,) = plans._kindred._kin.values()
    assert len(every) <= 2
    forget_plans()
    assert known_plan(calls[0], config) is None


def test_one_tensor_may_have_the_lengths_of_queries_and_keys() -> None:
    config = "rung:2"

    def made(counts: list[int]) -> Call:
        call = packed(counts, counts)
        q, k, v = (t.half().repeat(1, 1, 2) for t in call[:3])
        return call._replace(q=q, k=k, v=v, cu_seqlens_k=call.cu_seqlens_q)

    planned = plan_for(made([5, 6]), config)
    found = known_plan(made([5, 7, 9]), config)
    assert found is not None
    assert found.launcher is planned.launcher
    apart = made([5, 7, 9])
    assert apart.cu_seqlens_q is not None
    apart = apart._replace(cu_seqlens_k=apart.cu_seqlens_q.clone())
    assert known_plan(apart, config, by_key=False) is None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that are made from the start."""
    made: list[Plan] = []
    make = Plan.__init__

    def note(self: Plan, *given: Any, **options: Any) -> None:
        made.append(self)
        make(self, *given, **options)

    monkeypatch.setattr(Plan, "__init__", note)
    return made


@pytest.mark.gpu
def test_a_gpu_computes_steps_of_ever_new_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    made, r = counted(monkeypatch), random.Random(3)
    for _ in range(12):
        call = filled(MAKE["serving, lse, sinks"](r))
        wanted = attention(*call[:3], **call.keywords(), return_lse=True)
        on_gpu = call._replace(**on_device(call))
        found = attention(*on_gpu[:3], **on_gpu.keywords(), return_lse=True, validate=True)
        for ours_, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours_.cpu(), theirs, rtol=2e-2, atol=2e-2)
    assert len(made) <= 4


@pytest.mark.gpu
def test_a_gpu_trains_on_packed_sequences_of_ever_new_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, r = counted(monkeypatch), random.Random(4)
    for _ in range(12):
        counts = [r.randint(1, 200) for _ in range(r.randint(1, 9))]
        call = filled(packed(counts, counts))
        gradients = []
        for each in (call, call._replace(**on_device(call))):
            tensors = [tensor.detach().requires_grad_() for tensor in each[:3]]
            attention(*tensors, **each.keywords()).sum().backward()
            gradients.append([tensor.grad.cpu() for tensor in tensors if tensor.grad is not None])
        for theirs, ours_ in zip(*gradients, strict=True):
            torch.testing.assert_close(ours_, theirs, rtol=3e-2, atol=3e-2)
    assert len(made) <= 6


def on_device(call: Call) -> dict[str, Any]:
    return {name: tensor.cuda() for name, tensor in call.tensors().items()}

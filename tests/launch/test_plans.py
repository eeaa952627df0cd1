# SPDX-License-Identifier: Apache-2.0
"""Plans: which tensors are alike enough for a recent plan, and how many plans are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from flash_attention.call.backward_call import BackwardCall, Wanted
from flash_attention.call.call import DESCALES, Call
from flash_attention.launch import plans
from flash_attention.launch.device import CPU
from flash_attention.launch.plan import Plan
from flash_attention.launch.plans import Plans, known_plan, plan_for
from tests.call.test_call import CHANGES, OPTIONAL, OTHER_OPTIONS, everything
from tests.launch.calls import CONFIG, HOPPER, grouped


@pytest.fixture(autouse=True)
def no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_plans", Plans())


def noted(*tensors: Tensor) -> Plans[str]:
    made: Plans[str] = Plans()
    made.note("the plan", ("a kind",), *tensors)
    return made


@pytest.fixture(autouse=True)
def nothing_planned() -> None:
    plans.forget_plans()


def recent_plan(call: Call | BackwardCall, config: Any = None) -> Plan | None:
    return known_plan(call, config, by_key=False)


def test_a_recent_plan_is_found_by_its_kind_and_tensors_that_are_alike() -> None:
    q, k, v = grouped()
    made = noted(q, k, v)
    assert made.recent(("a kind",), q, k, v) == "the plan"
    assert made.recent(("a kind",), q.clone(), k.clone(), v.clone()) == "the plan"
    assert made.recent(("another",), q, k, v) is None
    made.clear()
    assert made.recent(("a kind",), q, k, v) is None


BACKWARD = "rung:1"
UNLIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "shape": lambda t: t[:, 1:],
    "strides": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "dtype": lambda t: t.bfloat16(),
    "device": lambda t: t.to("meta"),
    "negated": torch._neg_view,
    "class": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "layout": lambda t: t.to_sparse(),
}


@pytest.mark.parametrize("which", range(3), ids="qkv")
@pytest.mark.parametrize("change", UNLIKE.values(), ids=UNLIKE)
def test_tensors_that_a_key_tells_apart_are_not_alike(
    which: int, change: Callable[[Tensor], Tensor]
) -> None:
    tensors = list(grouped())
    made = noted(*tensors)
    tensors[which] = change(tensors[which])
    assert made.recent(("a kind",), *tensors) is None


def test_tensors_in_a_transform_are_not_alike() -> None:
    q, k, v = grouped()
    made = noted(q, k, v)
    found = []

    def call(each: Tensor) -> Tensor:
        found.append(made.recent(("a kind",), each, k, v))
        return each

    torch.func.vmap(call)(torch.stack([q, q]))
    assert found == [None]


@pytest.mark.usefixtures("no_compile")
@pytest.mark.parametrize("has_guards", [True, False])
def test_a_known_plan_is_the_plan_of_the_key(
    has_guards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_guards:
        monkeypatch.setattr(plans, "TensorGuards", None)
    q, k, v = grouped()
    call = Call(q, k, v)
    assert known_plan(call, HOPPER) is None
    planned = plan_for(call, HOPPER)
    for _ in range(3):
        assert known_plan(call, HOPPER) is planned
        assert known_plan(call._replace(q=q.clone()), HOPPER) is planned
    changes = (
        *({"causal": True}, {"softmax_scale": 0.5}, {"return_lse": True}),
        *({"out": q.clone()}, {"sinks": torch.zeros(6)}, {"k": k[:, 1:], "v": v[:, 1:]}),
    )
    for change in changes:
        assert known_plan(call._replace(**change), HOPPER) is None
        other = plan_for(call._replace(**change), HOPPER)
        assert known_plan(call._replace(**change), HOPPER) is other
        assert known_plan(call, HOPPER) is planned
    assert known_plan(call._replace(q=None), HOPPER) is None  # type: ignore[arg-type]


def changed(call: Call, name: str) -> Iterator[Call]:
    """Calls that differ from `call` in one field."""
    given = getattr(call, name)
    others: list[Any] = [OTHER_OPTIONS[name]] if name in OTHER_OPTIONS else []
    if isinstance(given, Tensor):
        others = [change(given) for change in CHANGES.values()]
    if name in OPTIONAL:
        others.append(getattr(everything(), name) if given is None else None)
    return (call._replace(**{name: other}) for other in others)


@pytest.mark.parametrize("count", [12, 4, 3], ids=["every tensor", "out", "q, k and v"])
@pytest.mark.parametrize("name", Call._fields)
def test_calls_that_differ_in_one_field_have_other_plans(name: str, count: int) -> None:
    given: tuple[Any, ...] = everything()[:count]
    call = Call(*given)
    mine, theirs = (Plan(Call(*grouped(seq_q=rows)), HOPPER) for rows in (1, 2))
    plans._plans.add((HOPPER, call.key()), mine)
    assert known_plan(call, HOPPER) is known_plan(call, HOPPER) is mine
    others = list(changed(call, name))
    assert others
    for other in others:
        assert known_plan(other, HOPPER) is None
        plans._plans.add((HOPPER, other.key()), theirs)
        for _ in range(2):
            assert known_plan(other, HOPPER) is theirs
            assert known_plan(call, HOPPER) is mine


NO_PART = ("call", "block_table", *DESCALES)  # of a backward pass
PASS_FIELDS = [n for n in (*BackwardCall._fields, *Call._fields) if n not in NO_PART]


def whole_pass(call: Call) -> BackwardCall:
    lse = torch.zeros(2, 2, 4)
    return BackwardCall(torch.zeros(2, 4, 2, 8), call, lse, lse.clone())


def changed_passes(whole: BackwardCall, name: str) -> Iterator[BackwardCall]:
    """Passes that differ from `whole` in one field, of its call if it has that name."""
    if name in Call._fields:
        others: list[Any] = [c for c in changed(whole.call, name) if c.out is not None]
    elif name == "wanted":
        others = [Wanted(*(i == at for i in range(4))) for at in range(4)]
    elif name == "deterministic":
        others = [True]
    elif name == "dlse" and whole.dlse is None:
        others = [torch.zeros_like(whole.lse)]
    else:
        others = [change(getattr(whole, name)) for change in CHANGES.values()]
        others += [None] if name == "dlse" else []
    field = "call" if name in Call._fields else name
    return (whole._replace(**{field: other}) for other in others)


@pytest.mark.parametrize("alone", [False, True], ids=["every tensor", "q, k and v"])
@pytest.mark.parametrize("name", PASS_FIELDS)
def test_passes_that_differ_in_one_field_have_other_plans(name: str, alone: bool) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("block_table", *DESCALES))
    call = everything()._replace(**nothing)
    whole = whole_pass(call)
    if alone:
        whole = whole._replace(call=Call(*call[:4]), dlse=None)
    mine, theirs = (Plan(backward_call(seq_k=rows), BACKWARD) for rows in (1, 2))
    plans._plans.add((BACKWARD, whole.key()), mine)
    assert known_plan(whole, BACKWARD) is mine
    assert recent_plan(whole, BACKWARD) is mine
    others = list(changed_passes(whole, name))
    assert others
    for other in others:
        assert recent_plan(other, BACKWARD) is None
        assert known_plan(other, BACKWARD) is None
        plans._plans.add((BACKWARD, other.key()), theirs)
        for _ in range(2):
            assert known_plan(other, BACKWARD) is theirs
            assert known_plan(whole, BACKWARD) is mine


@pytest.mark.usefixtures("no_compile")
def test_configs_and_the_wish_for_lse_have_other_plans() -> None:
    call = Call(*grouped())
    asked: list[tuple[Any, bool]] = [(c, lse) for c in (HOPPER, CONFIG) for lse in (False, True)]
    planned = [plan_for(call._replace(return_lse=lse), config) for config, lse in asked]
    assert len(set(map(id, planned))) == len(planned)
    for _ in range(3):
        found = [known_plan(call, config, with_lse=lse) for config, lse in asked]
        assert found == planned
    both = (BACKWARD, "rung:2")
    each = [plan_for(backward_call(), config) for config in both]
    for _ in range(3):
        assert [known_plan(backward_call(), config) for config in both] == each


@pytest.mark.usefixtures("no_compile")
def test_a_tensor_that_is_passed_twice_has_a_plan() -> None:
    q, k, _ = grouped()
    call = Call(q, k, k)
    planned = plan_for(call, HOPPER)
    assert known_plan(call, HOPPER) is known_plan(call, HOPPER) is planned


@pytest.mark.usefixtures("no_compile")
def test_without_a_config_torch_computes_on_the_cpu_whatever_was_planned() -> None:
    call, each = Call(*grouped()), backward_call()
    planned, planned_pass = plan_for(call), plan_for(each)
    for device in (CPU, 0, CPU):
        planned.device_index = planned_pass.device_index = device
        for _ in range(2):
            assert known_plan(call) is (None if device == CPU else planned)
            assert known_plan(each) is (None if device == CPU else planned_pass)
            assert recent_plan(each) is (None if device == CPU else planned_pass)


def backward_call(seq_k: int = 77) -> BackwardCall:
    q, k, v = grouped(seq_k=seq_k)
    lse = torch.zeros(1, 6, 100)
    return BackwardCall(torch.zeros_like(q), Call(q, k, v, torch.zeros_like(q)), lse)


@pytest.mark.usefixtures("no_compile")
def test_a_known_backward_plan_is_the_plan_of_the_key() -> None:
    call = backward_call()
    assert known_plan(call, BACKWARD) is None
    planned = plan_for(call, BACKWARD)
    for _ in range(3):
        assert known_plan(call, BACKWARD) is planned
        assert known_plan(call._replace(do=call.do.clone()), BACKWARD) is planned
    others = (
        call._replace(wanted=Wanted(dq=False)),
        call._replace(dlse=torch.zeros_like(call.lse)),
        call._replace(call=call.call._replace(causal=True)),
        call._replace(do=call.do.transpose(1, 2).contiguous().transpose(1, 2)),
        call._replace(lse=call.lse.double()),
        call._replace(call=call.call._replace(out=torch._neg_view(call.do))),
        call._replace(call=call.call._replace(sinks=torch.zeros(6))),
        call._replace(deterministic=True),
    )
    for other in others:
        assert known_plan(other, BACKWARD) is None


@pytest.mark.usefixtures("no_compile")
def test_calls_that_alternate_find_plans_without_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [Call(*grouped(*lengths)) for lengths in ((1, 64), (1, 96), (2, 96), (1, 128))]
    planned = [plan_for(call, HOPPER) for call in calls]
    passes = [backward_call(seq_k=length) for length in (64, 96)]
    passes.append(passes[0]._replace(dlse=torch.zeros_like(passes[0].lse)))
    planned_passes = [plan_for(each, BACKWARD) for each in passes]
    for call in calls:
        known_plan(call, HOPPER)
    for each in passes:
        known_plan(each, BACKWARD)

    def refuse(call: object) -> None:
        raise AssertionError("a key was made")

    for kind in (Call, BackwardCall):
        monkeypatch.setattr(kind, "key", refuse)
    for _ in range(2):
        assert [known_plan(call, HOPPER) for call in calls] == planned
        assert [known_plan(each, BACKWARD) for each in passes] == planned_passes
        assert [recent_plan(each, BACKWARD) for each in passes] == planned_passes


@pytest.mark.usefixtures("no_compile")
def test_calls_of_one_size_and_other_shapes_have_other_plans() -> None:
    tall, wide = Call(*grouped(60, 80, heads=2)), Call(*grouped(20, 80, heads=6))
    assert tall.q.numel() == wide.q.numel()
    planned = [plan_for(call, HOPPER) for call in (tall, wide)]
    for _ in range(3):
        assert [known_plan(call, HOPPER) for call in (tall, wide)] == planned


def test_all_plans_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 2)
    made: Plans[int] = Plans()
    for number in range(3):
        made.add(("key", number), number)
        made.note(number, ("kind", number), torch.zeros(1))
    assert [made.get(("key", number)) for number in range(3)] == [None, None, 2]
    found = [made.recent(("kind", number), torch.zeros(1)) for number in range(3)]
    assert found == [None, None, 2]

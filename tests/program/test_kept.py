# SPDX-License-Identifier: Apache-2.0
"""A function is traced again where anything that it reads is another, and only there."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import and_
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import and_masks

from flash_attention import Function, masks, scores
from flash_attention.program import kept, trace
from flash_attention.program.torch_reader import grid, see
from flash_attention.program.trace import Traced, trace_mask, trace_score

Make = Callable[[], Any]
LENGTH = 3
IDS = torch.tensor([0, 0, 1, 1])
AT = grid(1, 2, 4, 4)


@pytest.fixture(autouse=True)
def count(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for every function that is called."""
    found: list[None] = []
    call = trace._call
    monkeypatch.setattr(kept, "_kept", {})

    def counted(*given: Any) -> Any:
        found.append(None)
        return call(*given)

    monkeypatch.setattr(trace, "_call", counted)
    return found


def window(left: int, ids: Tensor | None = None) -> Any:
    if ids is None:
        return lambda b, h, q, k: q - k <= left
    return lambda b, h, q, k: (q - k <= left) & (ids[q] == ids[k])


def of_globals(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < LENGTH) & (IDS[q] == IDS[k])


def helper(x: Any) -> Any:
    return torch.where(x < 0, -x, x)


def of_a_helper(b: Any, h: Any, q: Any, k: Any) -> Any:
    return helper(q - k) < math.ceil(2.5)


def with_defaults(b: Any, h: Any, q: Any, k: Any, left: int = 1, *, right: int = 0) -> Any:
    return (q - k <= left) & (k - q <= right)


def with_an_inner_function(b: Any, h: Any, q: Any, k: Any) -> Any:
    return sum((q - k == step).int() for step in range(LENGTH)) > 0


KEPT: dict[str, Make] = {
    "captured number": lambda: window(2),
    "captured tensor": lambda: window(2, IDS),
    "globals": lambda: of_globals,
    "helper": lambda: of_a_helper,
    "defaults": lambda: with_defaults,
    "inner function": lambda: with_an_inner_function,
    "masks of the library": lambda: masks.documents(IDS) & ~masks.window(0, 0) | of_globals,
    "and_masks of torch": lambda: and_masks(of_globals, window(2)),
    "many masks": lambda: reduce(and_, [masks.window(n, n) for n in range(10)]),
    "partial": lambda: partial(with_defaults, left=2),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_function_is_traced_once(name: str, count: list[None]) -> None:
    first = trace_mask(KEPT[name]())
    again = trace_mask(KEPT[name]())
    assert len(count) == 1
    assert first.program is again.program
    assert first.numbers == again.numbers
    assert all(one is other for one, other in zip(first.tensors, again.tensors, strict=True))


def test_score_functions_are_kept_too(count: list[None]) -> None:
    slopes = scores.alibi_slopes(2)
    made = [Function(scores.alibi(slopes), masks.causal()) for _ in range(3)]
    assert len(count) == 2
    assert made[0] == made[2]
    assert made[2].tensors[0] is slopes
    trace_score(scores.alibi(slopes))
    assert len(count) == 3


def assert_traced_anew(mask: Any) -> None:
    """The trace is as if no other were kept."""
    found = see(trace_mask(mask), AT)
    kept._kept.clear()
    assert torch.equal(found, see(trace_mask(mask), AT))


def test_other_numbers() -> None:
    for left in (1, 2, 1.5, -1, True, 2):
        assert_traced_anew(window(left))  # type: ignore[arg-type]
    assert_traced_anew(lambda b, h, q, k: q < 0.0)
    signs = [trace_mask(partial(lambda x, b, h, q, k: q * x > 0, x)) for x in (0.0, -0.0)]
    assert [math.copysign(1, each.numbers[0]) for each in signs] == [1, -1]


def test_a_cell_that_changes() -> None:
    left, ids = 1, IDS

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q - k <= left) & (ids[q] == ids[k])

    first = trace_mask(mask)
    left = 3
    assert trace_mask(mask).numbers == (3,)
    ids = torch.zeros(4)
    found = trace_mask(mask)
    assert found.tensors[0] is ids
    assert found.program != first.program  # it reads floats


def test_a_global_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = trace_mask(of_globals), trace_mask(of_a_helper), trace_mask(with_an_inner_function)
    monkeypatch.setitem(globals(), "LENGTH", 1)
    monkeypatch.setitem(globals(), "IDS", torch.arange(4))
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    after = trace_mask(of_globals), trace_mask(of_a_helper), trace_mask(with_an_inner_function)
    for one, other in zip(before, after, strict=True):
        assert not torch.equal(see(one, AT), see(other, AT))


def test_defaults_that_change() -> None:
    before, defaults = see(trace_mask(with_defaults), AT), with_defaults.__kwdefaults__
    assert defaults is not None
    defaults["right"] = 2
    assert not torch.equal(before, see(trace_mask(with_defaults), AT))
    defaults["right"] = 0
    assert torch.equal(before, see(trace_mask(with_defaults), AT))


def test_tensors_of_other_shapes(count: list[None]) -> None:
    bias = torch.zeros(1, 4)
    change = scores.additive_bias(bias)
    first = trace_score(change)
    bias.data = torch.ones(4, 4)
    second = trace_score(change)
    assert len(count) == 2
    assert first.program != second.program  # a dimension of size 1 stands for all


TABLE = SimpleNamespace(length=1)


def of_an_attribute(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k <= TABLE.length


class WithState:
    def __init__(self) -> None:
        self.length = 1

    def mask(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k <= self.length

    def __call__(self, *at: Any) -> Any:
        return self.mask(*at)


STATE = WithState()
SCALAR = torch.tensor(1)
MUTABLE = {"length": 1}


def by_name(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k <= getattr(TABLE, "length")  # noqa: B009


def with_an_attribute(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k <= helper.abs  # type: ignore[attr-defined]


@pytest.fixture
def change() -> Iterator[Callable[[int], None]]:
    """Change all that functions read which cannot be compared."""

    def to(value: int) -> None:
        TABLE.length = STATE.length = MUTABLE["length"] = value
        helper.abs = value  # type: ignore[attr-defined]
        SCALAR.fill_(value)
        random.seed(value)
        torch.set_grad_enabled(value > 1)

    yield to
    torch.set_grad_enabled(True)
    del helper.abs  # type: ignore[attr-defined]


UNKNOWN: dict[str, Any] = {
    "attribute": of_an_attribute,
    "attribute by name": by_name,
    "method": STATE.mask,
    "object": STATE,
    "value of a tensor": lambda b, h, q, k: q - k <= SCALAR,
    "value that torch adds": lambda b, h, q, k: torch.add(q - k, SCALAR) < 2,
    "value that Python reads": lambda b, h, q, k: q - k <= int(SCALAR),
    "dictionary": lambda b, h, q, k: q - k <= MUTABLE["length"],
    "attribute of a function": with_an_attribute,
    "random number": lambda b, h, q, k: q - k <= random.randrange(100),
    "state of torch": lambda b, h, q, k: q - k <= torch.is_grad_enabled() + 1,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_compared_is_read_in_every_call(
    name: str, change: Callable[[int], None]
) -> None:
    change(1)
    before = trace_mask(UNKNOWN[name])
    change(3)
    assert trace_mask(UNKNOWN[name]).numbers != before.numbers


def test_a_part_of_a_tensor_is_taken_in_every_call() -> None:
    ids = IDS.clone()
    for start in (1, 2):
        ids.add_(start)
        found = trace_mask(lambda b, h, q, k: ids[start:][q - q] <= k)  # noqa: B023
        assert torch.equal(found.tensors[0], ids[start:])


def test_no_captured_tensor_is_kept_alive(count: list[None]) -> None:
    ids = torch.zeros(4, dtype=torch.int32)
    weak = ref(ids)
    trace_mask(window(1, ids))
    assert kept._kept
    del ids
    gc.collect()
    assert weak() is None


def test_an_address_that_is_used_again(count: list[None]) -> None:
    """The key of a tensor that is gone may come back with another tensor."""
    first, second = torch.zeros(4), torch.zeros(4)
    trace_mask(window(1, first))
    (key,) = kept._kept
    entry = kept._kept.pop(key)
    trace_mask(window(1, second))
    (own,) = kept._kept
    kept._kept[own] = entry
    assert trace_mask(window(1, second)).tensors[0] is second
    assert len(count) == 3


def test_few_traces_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 4)
    found: list[Traced] = [trace_mask(window(left)) for left in range(9)]
    assert [each.numbers for each in found] == [(left,) for left in range(9)]
    assert len(kept._kept) == 4


def test_threads_keep_traces_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 1)
    monkeypatch.setattr(kept, "_kept", _Racing())
    found = [trace_mask(window(left)) for left in range(3)]
    assert [each.numbers for each in found] == [(left,) for left in range(3)]


class _Racing(dict[Any, Any]):
    """A dictionary whose oldest entry another thread takes away while this one looks."""

    def __iter__(self) -> Iterator[Any]:
        seen = list(super().__iter__())
        for key in seen[:1]:
            del self[key]
        return iter(seen)

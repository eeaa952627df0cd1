# SPDX-License-Identifier: Apache-2.0
"""What a function becomes: slots, texts and dependences, and what it may not do."""

from __future__ import annotations

import gc
import inspect
import math
import operator
import re
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from flash_attention import masks
from flash_attention.errors import UnsupportedError
from flash_attention.program.cuda_reader import cuda_text
from flash_attention.program.nodes import BATCH, HEAD, KEY, QUERY, SCORE
from flash_attention.program.trace import trace, trace_mask, trace_score

SLOPES = torch.arange(1.0, 9.0)
BIAS = torch.zeros(8, 16, 16, dtype=torch.bfloat16)
SPARSE = torch.eye(8)[0].to_sparse()
LIST = [1, 2, 3]
torch.library.define("a_test::tanh", "(Tensor x) -> Tensor")


def capped(cap: float, window: int) -> tuple[Any, Any]:
    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return cap * torch.tanh(score / cap) + SLOPES[head] * (key - query)

    return change, lambda batch, head, query, key: query - key <= window


def test_numbers_are_slots_and_no_part_of_the_text() -> None:
    first, second = trace(*capped(30.0, 7)), trace(*capped(50.0, 1024))
    assert first.numbers == (30.0, 30.0, 7)
    assert second.numbers == (50.0, 50.0, 1024)
    assert first.program == second.program
    assert hash(first.program) == hash(second.program)
    assert cuda_text(first.program) == cuda_text(second.program)


def test_infinities_are_part_of_the_text() -> None:
    def masked(value: float) -> Any:
        return trace_score(lambda s, b, h, q, k: torch.where(q >= k, s, value))

    assert masked(-math.inf).numbers == masked(math.inf).numbers == ()
    assert masked(-math.inf).program != masked(math.inf).program
    assert masked(-1e300).program == masked(-(10**400)).program == masked(-math.inf).program
    assert masked(0.0).program == masked(1.0).program != masked(math.nan).program


def test_a_tensor_is_one_slot_and_its_sizes_and_values_no_part_of_the_text() -> None:
    def both(tensor: torch.Tensor) -> Any:
        return trace(
            lambda s, b, h, q, k: s + tensor[h] + tensor[h + 0], lambda b, h, q, k: tensor[h] < 1
        )

    traced = both(SLOPES)
    assert traced.tensors == (SLOPES,)
    assert traced.program == both(torch.ones(3)).program
    assert traced.program == both(torch.ones(12)[::4]).program
    assert traced.program != both(torch.ones(3).half()).program


def test_what_no_result_needs_is_left_out() -> None:
    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        BIAS[head, query, key] + 3.0 * query
        return score + 1.0

    traced = trace_score(change)
    assert traced.tensors == ()
    assert traced.numbers == (1.0,)
    assert [node.op for node in traced.program.nodes] == ["score", "number", "add"]


def test_rows_of_rows_are_elements() -> None:
    whole = trace_score(lambda s, b, h, q, k: s + BIAS[h, q, k])
    assert trace_score(lambda s, b, h, q, k: s + BIAS[h][q][k]).program == whole.program
    assert trace_score(lambda s, b, h, q, k: s + BIAS[h][q, k]).program == whole.program


def test_negative_integers_count_from_the_end_and_slots_hold_what_is_meant() -> None:
    assert trace_score(lambda s, b, h, q, k: s + BIAS[h, -1, k]).numbers == (15,)


@pytest.mark.parametrize(
    ("function", "depends"),
    [
        (lambda b, h, q, k: q >= k, QUERY | KEY),
        (lambda b, h, q, k: k < 5, KEY),
        (lambda b, h, q, k: SLOPES[h] * (q - k) < 5, HEAD | QUERY | KEY),
        (lambda b, h, q, k: (b == 0) | (q >= k), BATCH | QUERY | KEY),
        (lambda b, h, q, k: True, 0),
    ],
)
def test_dependences_of_masks(function: Any, depends: int) -> None:
    assert trace_mask(function).program.mask_depends == depends


def test_dependences_of_scores() -> None:
    assert trace_score(lambda s, b, h, q, k: s + SLOPES[h]).program.score_depends == SCORE | HEAD


def chained(b: Any, h: Any, q: Any, k: Any) -> Any:
    return 0 <= q < k


def branching(b: Any, h: Any, q: Any, k: Any) -> Any:
    if q > k:
        return True
    return k < 3


def of_math(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return math.exp(s)


@pytest.mark.parametrize(
    ("function", "line", "words"),
    [
        (branching, "if q > k:", "write torch.where"),
        (chained, "return 0 <= q < k", "& | ~ between comparisons"),
        (lambda b, h, q, k: q > k and k > 3, "q > k and k > 3", "& | ~ between comparisons"),
        (lambda b, h, q, k: not (q > k), "not (q > k)", "& | ~"),
        (lambda b, h, q, k: LIST[h] > 1, "LIST[h]", "make the list a tensor"),
        (lambda b, h, q, k: any(q), "any(q)", "loop over numbers only"),
        (lambda b, h, q, k: q - k, "q - k", "returns an int; it must return whether"),
        (lambda b, h, q, k: None, "None", "returns None; it must return whether"),
        (lambda b, h, q: q > 1, "lambda b, h, q:", "called with (batch, head, query, key)"),
        (lambda b, h, q, k: SLOPES[h, q] > 0, "SLOPES[h, q]", "it has 1 dimensions"),
        (lambda b, h, q, k: SLOPES[q > k] > 0, "SLOPES[q > k]", "indices are integers"),
        (lambda b, h, q, k: SLOPES[9:][h] > 0, "SLOPES[9:]", "needs at least one"),
        (lambda b, h, q, k: (q > k) & (q / 2), "(q / 2)", "it takes bools and integers"),
        (lambda b, h, q, k: q < 2**40, "2**40", "more than 32 bits"),
        (lambda b, h, q, k: q // 0 > k, "q // 0", "a divisor of // or % is 0"),
    ],
)
def test_masks_that_are_refused(function: Any, line: str, words: str) -> None:
    refused(trace_mask, function, line, words)


@pytest.mark.parametrize(
    ("function", "line", "words"),
    [
        (of_math, "return math.exp(s)", "write torch.exp"),
        (lambda s, b, h, q, k: float(s), "float(s)", "write torch.exp"),
        (lambda s, b, h, q, k: max(s, 0), "max(s, 0)", "torch.minimum or torch.maximum"),
        (lambda s, b, h, q, k: torch.softmax(s, 0), "torch.softmax", "can call abs, absolute"),
        (lambda s, b, h, q, k: torch.ops.aten.erf(s), "aten.erf", "'erf' is called"),
        (lambda s, b, h, q, k: torch.ops.a_test.tanh(s), "a_test", "'a_test::tanh' is called"),
        (lambda s, b, h, q, k: s + 2**h, "2**h", "exponents can be"),
        (lambda s, b, h, q, k: s.exp_(), "s.exp_()", "'exp_' is called"),
        (lambda s, b, h, q, k: s + BIAS, "s + BIAS", "read one element"),
        (lambda s, b, h, q, k: BIAS * s, "BIAS * s", "read one element"),
        (lambda s, b, h, q, k: s + BIAS[h], "s + BIAS[h]", "index every dimension"),
        (lambda s, b, h, q, k: torch.exp(BIAS[h]), "torch.exp", "index every dimension"),
        (lambda s, b, h, q, k: s + BIAS[h, :, k], "BIAS[h, :, k]", "index every dimension"),
        (lambda s, b, h, q, k: s + BIAS[h, 16, k], "BIAS[h, 16, k]", "has 16 elements"),
        (lambda s, b, h, q, k: s + "1", 's + "1"', "operands are"),
        (lambda s, b, h, q, k: s + SPARSE[q], "s + SPARSE[q]", "with tensor.to_dense()"),
        (lambda s, b, h, q, k: s < 1, "s < 1", "returns a bool; it must return the new score"),
        (lambda s, b, h, q, k: s.clamp(1, 2, 3), "s.clamp(1, 2, 3)", "other arguments than"),
        (lambda s, b, h, q, k: s**1.5, "s**1.5", "exponents can be"),
        (lambda s, b, h, q, k: s**math.inf, "s**math.inf", "exponents can be"),
        (lambda s, b, h, q, k: s**math.nan, "s**math.nan", "exponents can be"),
    ],
)
def test_scores_that_are_refused(function: Any, line: str, words: str) -> None:
    refused(trace_score, function, line, words)


def refused(trace_: Callable[..., Any], function: Any, line: str, words: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        trace_(function)
    place, _, rest = str(error.value).partition("\n")
    start = inspect.getsourcelines(function)[1]
    found = re.match(re.escape(f"{__file__}:") + r"(\d+): (.*)", place)
    assert found is not None
    assert start <= int(found[1]) <= start + 1
    assert line in found[2]
    assert words in rest


def test_numpy_is_refused_and_its_numbers_are_numbers() -> None:
    with pytest.raises(TypeError, match="ufunc"):
        trace_score(lambda s, b, h, q, k: np.exp(s))
    traced = trace_score(lambda s, b, h, q, k: np.float32(2) * s + np.int64(3))
    assert traced.numbers == (2.0, 3.0)


def test_a_function_that_calls_too_many_others_is_refused() -> None:
    mask = masks.causal()
    for _ in range(sys.getrecursionlimit()):
        mask = mask | masks.window(1, 1)
    with pytest.raises(UnsupportedError, match="within each other than Python allows; combine"):
        trace_mask(mask)


def test_torch_and_python_call_functions_by_other_names() -> None:
    both = trace_score(lambda s, b, h, q, k: F.relu(s) + operator.add(*divmod(q, 3)))
    assert both == trace_score(lambda s, b, h, q, k: torch.relu(s) + (q // 3 + q % 3))
    bools = trace_mask(lambda b, h, q, k: (k <= q) * (k > 3) + (k == q))
    assert bools == trace_mask(lambda b, h, q, k: (k <= q) & (k > 3) | (k == q))


def test_a_symbol_of_an_earlier_call_is_refused() -> None:
    kept: list[Any] = []

    def keep(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        kept.append(s)
        return s

    trace_score(keep)
    with pytest.raises(UnsupportedError, match="earlier call"):
        trace_score(lambda s, b, h, q, k: s + kept[0])


def test_only_tensors_are_held() -> None:
    captured = torch.ones(3)

    def change(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + captured[h]

    gone = weakref.ref(change)
    traced = trace_score(change)
    del change
    gc.collect()
    assert gone() is None
    assert traced.tensors == (captured,)


def test_tracing_is_quick() -> None:
    functions = capped(30.0, 7)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        assert trace(*functions).program.text
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1e-3


@pytest.mark.parametrize("seed", range(20))
def test_names_and_values_of_the_user_never_reach_the_text(seed: int) -> None:
    draw = np.random.default_rng(seed)
    word = "".join(draw.choice(list("abcdefghijklm"), 12)) + "_of_the_user"
    number, integer = float(draw.normal() * 1e3), int(draw.integers(1000, 10**6))
    source = (
        f"def {word}(s, b, h, q, k):\n"
        f"    {word}_local = tensor_{word}[h] * {number!r} + q % {integer}\n"
        f"    return s + {word}_local\n"
    )
    scope = {f"tensor_{word}": torch.full((3,), number)}
    exec(source, scope)
    traced = trace_score(scope[word])  # type: ignore[arg-type]
    assert traced.numbers == (number, integer)
    for text in (traced.program.text, cuda_text(traced.program)):
        assert "user" not in text
        assert repr(abs(number)) not in text
        assert str(integer) not in text
        assert re.fullmatch(r"[\w\s%.\[\]{}();:,<>&*+=!?|^~/-]*", text)

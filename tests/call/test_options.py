# SPDX-License-Identifier: Apache-2.0
"""Rules on options and on the tensors a call may leave out: what breaks them, what just passes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention.call.call import Call
from flash_attention.call.options import check_extras, check_options, check_types
from flash_attention.call.tensors import MAX_ROWS, TensorView
from flash_attention.errors import UnsupportedError

BATCH, HEADS = 3, 4
DENSE = (BATCH, 20, HEADS, 64)
PACKED = (50, HEADS, 64)


def refused(message: str) -> Any:
    return pytest.raises(UnsupportedError, match=message)


def asking(**options: Any) -> Call:
    """A call of plain tensors."""
    q = torch.zeros(DENSE, dtype=torch.float16)
    return Call(q, q, q, **options)


@pytest.mark.parametrize("scale", [None, 0.125, 1, 1e-30, 1e38, np.float32(0.5), np.float64(2)])
def test_positive_scales_pass(scale: Any) -> None:
    check_options(asking(softmax_scale=scale))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (0.0, r"softmax_scale is 0.0; allowed are positive numbers"),
        (-0.125, r"softmax_scale is -0.125; .* pass -q"),
        (float("nan"), r"softmax_scale is nan"),
        (float("inf"), r"softmax_scale is inf"),
        (1e39, r"softmax_scale is 1e\+39; .* that float32 holds"),
        (1e-60, r"softmax_scale is 1e-60"),
        ("0.1", r"softmax_scale is a str; pass a positive number, or None for 1 / sqrt"),
        (torch.tensor(0.1), r"softmax_scale is a Tensor"),
        ([0.1], r"softmax_scale is a list"),
    ],
)
def test_other_scales_are_refused(scale: Any, message: str) -> None:
    with refused(message):
        check_options(asking(softmax_scale=scale))


@pytest.mark.parametrize("softcap", [0, 0.0, 30, 1e-3, np.float32(50)])
def test_softcaps_from_zero_on_pass(softcap: Any) -> None:
    check_options(asking(softcap=softcap))


@pytest.mark.parametrize(
    ("softcap", "message"),
    [
        (-1.0, r"softcap is -1.0; allowed are positive numbers .* and 0.0 for no softcap"),
        (float("nan"), r"softcap is nan"),
        (float("inf"), r"softcap is inf"),
        (1e-60, r"softcap is 1e-60"),
        (None, r"softcap is a NoneType; pass a positive number, or 0.0"),
        (torch.tensor(30.0), r"softcap is a Tensor"),
    ],
)
def test_other_softcaps_are_refused(softcap: Any, message: str) -> None:
    with refused(message):
        check_options(asking(softcap=softcap))


@pytest.mark.parametrize(
    "window", [None, (-1, -1), (None, 0), (0, 0), (1 << 40, 7), (np.int64(3), 2)]
)
def test_windows_of_whole_numbers_pass(window: Any) -> None:
    check_options(asking(window=window))


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (128, r"window is 128; pass a tuple \(left, right\)"),
        ([128, 0], r"window is \[128, 0\]; pass a tuple"),
        ((1, 2, 3), r"window is \(1, 2, 3\); pass a tuple"),
        ((-2, 0), r"window is \(-2, 0\); each side is a whole number from 0 on, or -1 or None"),
        ((1.5, 0), r"each side is a whole number"),
        ((True, 0), r"each side is a whole number"),
        ((0, torch.tensor(3)), r"each side is a whole number"),
    ],
)
def test_other_windows_are_refused(window: Any, message: str) -> None:
    with refused(message):
        check_options(asking(window=window))


def starts(count: int = BATCH + 1, **like: Any) -> torch.Tensor:
    return torch.zeros(count, **{"dtype": torch.int32, **like})


def check(
    *,
    q: tuple[int, ...] = DENSE,
    k: tuple[int, ...] = DENSE,
    **keywords: Any,
) -> None:
    q_tensor, k_tensor = (torch.zeros(shape, dtype=torch.float16) for shape in (q, k))
    call = Call(q_tensor, k_tensor, k_tensor, **keywords)
    check_extras(call, TensorView.of("q", q_tensor), TensorView.of("k", k_tensor))


def test_extra_tensors_that_fit_pass() -> None:
    check()
    check(sinks=torch.zeros(HEADS), seqused_k=starts(BATCH))
    both = {"cu_seqlens_q": starts(), "cu_seqlens_k": starts()}
    lengths = {"max_seqlen_q": 7, "max_seqlen_k": 0}
    check(**lengths, q=PACKED, k=PACKED, **both)
    check(**lengths, q=PACKED, k=PACKED, **both, seqused_k=starts(BATCH))
    check(max_seqlen_q=7, q=PACKED, cu_seqlens_q=starts(), seqused_k=starts(BATCH))
    check(max_seqlen_k=7, k=PACKED, cu_seqlens_k=starts())


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (
            torch.zeros(HEADS).bfloat16(),
            r"sinks is torch.bfloat16; pass torch.float32, sinks.f",
        ),
        (torch.zeros(HEADS).double(), r"sinks is torch.float64"),
        (torch.zeros(HEADS + 1), r"sinks has shape \(5\); it must be \(heads = 4,\)"),
        (torch.zeros(1, HEADS), r"sinks has shape \(1, 4\)"),
        (torch.zeros(HEADS, device="meta"), r"sinks is on meta, q is on cpu; .*to\(q.device\)"),
        (torch.zeros(2 * HEADS)[::2], r"sinks has stride 2; it must be contiguous"),
        ([0.0] * HEADS, r"sinks is a list; pass a torch.Tensor of shape \(heads\)"),
    ],
)
def test_sinks_are_float32_one_a_head(sinks: Any, message: str) -> None:
    with refused(message):
        check(sinks=sinks)


@pytest.mark.parametrize("of", ["q", "k"])
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (
            starts(dtype=torch.int64),
            r"cu_seqlens_. is torch.int64; pass torch.int32, .*to\(t",
        ),
        (starts(device="meta"), r"cu_seqlens_. is on meta, q is on cpu"),
        (starts(8)[::2], r"cu_seqlens_. has stride 2; it must be contiguous"),
        (starts(8).view(2, 4), r"cu_seqlens_. has shape \(2, 4\); it must be \(batch \+ 1,\)"),
        (starts(0), r"cu_seqlens_. is empty; it holds where the sequences of . start"),
        (starts(BATCH), r"there are \d sequences of queries and \d of keys"),
        ([0, 1], r"cu_seqlens_. is a list; pass a torch.Tensor of shape \(batch \+ 1\)"),
    ],
)
def test_starts_are_int32_one_more_than_entries(of: str, lengths: Any, message: str) -> None:
    given: dict[str, Any] = {of: PACKED, f"cu_seqlens_{of}": lengths, f"max_seqlen_{of}": 9}
    with refused(message):
        check(**given)


@pytest.mark.parametrize("of", ["q", "k"])
@pytest.mark.parametrize(
    ("length", "message"),
    [
        (None, r"cu_seqlens_. is given without max_seqlen_.; .* not read from the device"),
        (-1, r"max_seqlen_. is -1; pass the length of the longest sequence as an int"),
        (7.0, r"max_seqlen_. is 7.0"),
        (True, r"max_seqlen_. is True"),
        (torch.tensor(7), r"max_seqlen_. is a Tensor"),
    ],
)
def test_packed_tensors_come_with_an_int(of: str, length: Any, message: str) -> None:
    given: dict[str, Any] = {
        of: PACKED,
        f"cu_seqlens_{of}": starts(),
        f"max_seqlen_{of}": length,
    }
    with refused(message):
        check(**given)


@pytest.mark.parametrize("of", ["q", "k"])
def test_a_longest_length_of_a_tensor_that_has_one_is_refused(of: str) -> None:
    with refused(f"max_seqlen_{of} is given without cu_seqlens_{of}; leave it out"):
        given: dict[str, Any] = {f"max_seqlen_{of}": 20}
        check(**given)


@pytest.mark.parametrize(
    ("used", "message"),
    [
        (starts(BATCH, dtype=torch.int64), r"seqused_k is torch.int64; pass torch.int32"),
        (starts(BATCH + 1), r"seqused_k has shape \(4\); it must be \(batch = 3,\)"),
        ((1, 2, 3), r"seqused_k is a tuple"),
    ],
)
def test_used_lengths_are_int32_one_an_entry(used: Any, message: str) -> None:
    with refused(message):
        check(seqused_k=used)


@pytest.mark.parametrize("name", ["causal", "return_lse"])
def test_switches_are_on_or_off(name: str) -> None:
    for good in (True, False, 1, 0, np.bool_(True)):
        check_options(asking(**{name: good}))
    others: list[Any] = [None, "yes", 2, [], torch.tensor([True, False]), np.zeros(3)]
    for bad in others:
        with refused(rf"{name} is .*; pass True or False"):
            check_options(asking(**{name: bad}))


@pytest.mark.parametrize("huge", [10**400, -(10**400), Fraction(10**400), 10**5000], ids=type)
def test_numbers_that_no_float_holds_are_refused(huge: Any) -> None:
    with refused(r"softmax_scale is .*; allowed are positive numbers that float32 holds"):
        check_options(asking(softmax_scale=huge))
    with refused(r"softcap is .*; allowed are positive numbers that float32 holds"):
        check_options(asking(softcap=huge))


def test_what_cannot_be_printed_is_refused_all_the_same() -> None:
    with refused("window is an int that cannot be printed; pass a tuple"):
        check_options(asking(window=10**5000))
    with refused("window is a tuple that cannot be printed; each side"):
        check_options(asking(window=(0, -(10**5000))))
    with refused("split_keys is an int that cannot be printed; pass how many"):
        check_options(asking(split_keys=-(10**5000)))


def test_a_longest_length_is_one_that_a_tensor_can_have() -> None:
    lengths: dict[str, Any] = {"cu_seqlens_q": starts(), "max_seqlen_q": MAX_ROWS + 1}
    with refused(r"max_seqlen_q is 1073741825; pass .* as an int, at most 1073741824"):
        check_types(asking(**lengths))


def of_8_bits(**descales: Any) -> Call:
    """A call of 8-bit tensors with one factor each, some of them replaced."""
    q = torch.zeros(DENSE).to(torch.float8_e4m3fn)
    one = torch.ones(1)
    return Call(q, q, q, **{"q_descale": one, "k_descale": one, "v_descale": one} | descales)


def check_descales(call: Call) -> None:
    check_extras(call, TensorView.of("q", call.q), TensorView.of("k", call.k))


@pytest.mark.parametrize(
    "factor", [torch.ones(()), torch.ones(1), torch.ones(BATCH, HEADS), torch.ones(1).expand(3, 4)]
)
def test_descale_factors_are_for_all_or_for_each_head(factor: torch.Tensor) -> None:
    check_descales(of_8_bits(k_descale=factor))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k_descale": None}, r"k is torch\.float8_e4m3fn, and k_descale is missing; pass the"),
        ({"v_descale": torch.ones(BATCH)}, r"v_descale has shape \(3\); it must be .* = \(3, 4\)"),
        ({"q_descale": torch.ones(1).double()}, r"is torch\.float64; pass torch\.float32, q_desc"),
        ({"q_descale": torch.ones(1, device="meta")}, "q_descale is on meta, q is on cpu; move it"),
        ({"q_descale": 0.5}, r"q_descale is a float; pass a torch\.Tensor of shape \(batch, head"),
    ],
)
def test_other_descale_factors_are_refused(changes: dict[str, Any], message: str) -> None:
    with refused(message):
        check_descales(of_8_bits(**changes))


def test_tensors_of_16_bits_have_no_descale_factors() -> None:
    with refused(r"v_descale is given, and v is torch\.float16; only torch\.float8_e4m3fn tensors"):
        check_descales(asking(v_descale=torch.ones(1)))

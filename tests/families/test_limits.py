# SPDX-License-Identifier: Apache-2.0
"""What no kernel of a family takes, whatever the config: head dimensions, strides, addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flash_attention.arch import ARCHES
from flash_attention.call.problem import Problem
from flash_attention.call.tensors import MAX_ROWS, OUTPUT, TensorView
from flash_attention.errors import UnsupportedError
from flash_attention.families.fit import check_pointers, memory_refusal
from flash_attention.families.passes import Pass
from flash_attention.families.registry import FAMILIES, check_columns, families_of
from flash_attention.kernel_configs import get_kernels_to_build
from tests.call.test_tensors import DENSE, PACKED, SHAPE, view, views

PROBLEM = Problem(2, 128, 128, 4, 4, 128, 128, view().dtype, 0.1)
PACKED_PROBLEM = replace(PROBLEM, total_q=500, total_k=500)


def refusals(problem: Problem, *given: TensorView) -> set[str | None]:
    """What the families of the forward pass say, each once."""
    tensors = [each.with_batch for each in given]
    return {family.refusal(problem, tensors) for family in families_of(Pass.FORWARD)}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"shape": (2, 128, 4, 100)},
        "q has d_head 100; allowed are multiples of 8: pad with zeros to 104 (torch.nn.functional."
        "pad) and pass softmax_scale, whose default follows the padded d_head",
    ),
    (
        {"shape": (2, MAX_ROWS + 1, 4, 128)},
        "q has 1073741825 rows; a launch takes at most 1073741824, split the tensors along seq",
    ),
    (
        {"strides": (65536, 512, 1, 4)},
        "the last dimension of q has stride 4; it must be contiguous (stride 1), copy it with"
        " q.contiguous()",
    ),
    ({"strides": (65536, 512, 128, 0)}, "the last dimension of q has stride 0;"),
    (
        {"strides": (65540, 512, 128, 1)},
        "the batch stride of q is 65540 elements; it must be a multiple of 8, so that every row"
        " starts on 16 bytes; copy it with q.contiguous()",
    ),
    ({"strides": (65536, 516, 128, 1)}, "the seq stride of q is 516 elements;"),
    ({"strides": (65536, 512, 129, 1)}, "the heads stride of q is 129 elements;"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_every_family_says_why_it_does_not_take_a_tensor(
    changes: dict[str, Any], message: str
) -> None:
    assert refusals(PROBLEM, *views()) == {None}
    (why,) = refusals(PROBLEM, view("k"), view("q", **changes), view("v"))
    assert why is not None
    assert why.startswith(message)


@pytest.mark.parametrize("name", ["k", "v", OUTPUT])
def test_every_tensor_is_looked_at(name: str) -> None:
    (why,) = refusals(PROBLEM, *views(), view(name, strides=(65536, 4, 128, 1)))
    assert f"the seq stride of {name} is 4 elements" in str(why)


def test_packed_tensors_have_a_dimension_less() -> None:
    assert refusals(PACKED_PROBLEM, *views(**PACKED)) == {None}
    (odd,) = refusals(PACKED_PROBLEM, view(shape=(500, 4, 128), strides=(516, 128, 1)))
    assert "the total stride of q is 516 elements" in str(odd)
    (long,) = refusals(PACKED_PROBLEM, view(shape=(MAX_ROWS + 1, 4, 128), strides=(512, 128, 1)))
    assert str(long).endswith("split the tensors along total")


def test_broadcast_inputs_and_odd_strides_of_single_entries_pass() -> None:
    assert refusals(PROBLEM, *views(strides=(0, 512, 0, 1))) == {None}
    single = views(shape=(1, 128, 1, 128), strides=(3, 128, 5, 1))
    assert refusals(PROBLEM, *single) == {None}


def test_a_transposed_v_has_contiguous_keys() -> None:
    asked = replace(PROBLEM, v_transposed=True)
    v = view("v", strides=(65536, 1, 16384, 128))
    assert refusals(PROBLEM, v) != {None}
    assert refusals(asked, v) == {None}


def test_rows_may_start_on_other_bytes() -> None:
    odd = view(strides=(65536, 516, 128, 1))
    assert memory_refusal(odd, packed=False, alignment=8) is None
    check_pointers([view(pointer=4104)], alignment=8)


@pytest.mark.parametrize("past", [2, 4, 8, 14])
@pytest.mark.parametrize("name", list("qkvo"))
def test_a_pointer_off_sixteen_bytes_is_refused(name: str, past: int) -> None:
    tensors = {n: view(n, pointer=4096) for n in "qkvo"}
    check_pointers(tensors.values())
    tensors[name] = view(name, pointer=4096 + past)
    with pytest.raises(UnsupportedError, match=rf"{name} starts at .* {past} bytes past a mult"):
        check_pointers(tensors.values())


def test_of_an_output_no_copy_is_advised() -> None:
    advice = "pass another tensor, or leave it out"
    assert (SHAPE, DENSE) == ((2, 128, 4, 128), (65536, 512, 128, 1))
    strided = view(OUTPUT, strides=(65536, 512, 128, 2))
    why = memory_refusal(strided, packed=False)
    assert str(why).startswith("the last dimension of the output has ")
    assert str(why).endswith(advice)
    with pytest.raises(UnsupportedError, match=f"^the output starts at .*, or {advice}"):
        check_pointers([view(OUTPUT, pointer=8)])


@pytest.mark.parametrize("d_head", [520, 600])
def test_heads_that_no_kernel_has_are_refused(d_head: int) -> None:
    check_columns(replace(PROBLEM, d_head=512, d_v=512))
    check_columns(replace(PROBLEM, d_head=576, d_v=512))
    wide = replace(PROBLEM, d_head=d_head), replace(PROBLEM, d_v=d_head)
    for name, asked in zip("qv", wide, strict=True):
        message = rf"^{name} has d_head {d_head}; the kernels take at most 512, torch's"
        with pytest.raises(UnsupportedError, match=message):
            check_columns(asked)
    with pytest.raises(
        UnsupportedError, match=r"512, or 576 with a v of 512 columns of k \(MLA\),"
    ):
        check_columns(replace(PROBLEM, d_head=576, d_v=576))


@pytest.mark.parametrize("pass_", Pass)
def test_families_are_as_wide_as_their_widest_config(pass_: Pass) -> None:
    configs = get_kernels_to_build(ARCHES["sm_90"], pass_)
    widest = max(config.d_head for config in configs if not config.v_in_k)
    assert widest == max(family.widest() for family in FAMILIES if family.pass_ is pass_)

# SPDX-License-Identifier: Apache-2.0
"""Each rule on the tensors of a call: what breaks it, what the message says, what just passes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from flash_attention.call.call import Call
from flash_attention.call.tensors import (
    Packing,
    TensorView,
    check_given_output,
    check_kind,
    check_no_grad,
    check_no_overlap,
    check_shapes,
)
from flash_attention.errors import UnsupportedError

GPU = torch.device("cuda", 0)
SHAPE = (2, 128, 4, 128)
DENSE = (65536, 512, 128, 1)
ROWS = [torch.zeros(3, 4, 16), torch.zeros(5, 4, 16)]


def view(name: str = "q", **changes: Any) -> TensorView:
    plain = TensorView(name, SHAPE, DENSE, torch.float16, GPU)
    return replace(plain, **changes)


def views(**changes: Any) -> tuple[TensorView, TensorView, TensorView]:
    return view("q", **changes), view("k", **changes), view("v", **changes)


def with_keys(shape: tuple[int, ...]) -> tuple[TensorView, TensorView, TensorView]:
    """q, and k and v of another shape."""
    return view("q"), view("k", shape=shape), view("v", shape=shape)


def check_inputs(
    q: TensorView, k: TensorView, v: TensorView, packing: Packing | None = None
) -> None:
    """Check q, k and v as far as no kernel has a part in it."""
    for each in (q, k, v):
        check_kind(each)
    check_shapes(q, k, v, packing or Packing())


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")], ids=str)
def test_good_tensors_pass_every_rule(device: torch.device) -> None:
    q, _, v = inputs = views(pointer=1 << 20, device=device)
    o = view("o", pointer=1 << 30, device=device)
    check_inputs(*inputs)
    check_given_output(o, q, v)
    check_no_overlap(o, inputs)


def test_a_view_describes_a_strided_tensor() -> None:
    packed = torch.zeros(2, 128, 3, 4, 128, dtype=torch.bfloat16)
    seen = TensorView.of("k", packed[:, :, 1])
    assert seen == TensorView(
        name="k",
        shape=SHAPE,
        strides=(196608, 1536, 128, 1),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        pointer=packed.data_ptr() + 2 * 4 * 128,
    )
    assert seen.layout.span == 2 * (196608 + 127 * 1536 + 3 * 128 + 127 + 1)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (np.zeros(SHAPE, dtype=np.float16), r"q is a ndarray; pass a torch.Tensor"),
        (3, r"q is an int; pass a torch.Tensor"),
        (None, r"q is a NoneType; pass a torch.Tensor of shape \(batch, seq, heads, d_head\)"),
        (torch.zeros(4, 4).to_sparse(), r"q has layout torch.sparse_coo.*to_dense"),
        (torch.nested.nested_tensor(ROWS), r"q is a nested tensor; .* with cu_seqlens"),
        (
            torch.nested.nested_tensor(ROWS, layout=torch.jagged),
            r"q is a nested tensor; .*q\.values\(\)",
        ),
    ],
)
def test_what_is_no_dense_tensor_is_refused(thing: object, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        TensorView.of("q", thing)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": torch.device("meta")}, r"on meta; a CUDA tensor is needed.*q\.cpu\(\) to have"),
        ({"device": torch.device("xla", 0)}, r"on xla:0; a CUDA tensor is needed"),
        ({"dtype": torch.float32}, r"is torch.float32; allowed are torch.float16, torch.bfl"),
        ({"dtype": torch.float64}, r"is torch.float64"),
        ({"dtype": torch.int16}, r"is torch.int16"),
        (
            {"shape": SHAPE[1:], "strides": DENSE[1:]},
            r"q has 3 dimensions, shape \(128, 4, 128\); allowed are four, unless cu_seqlens_q is",
        ),
        ({"shape": (2, 128, 4, 0)}, r"q has shape \(2, 128, 4, 0\), .* a d_head of at least 1"),
        ({"shape": (1, *SHAPE), "strides": (0, *DENSE)}, r"has 5 dimensions"),
    ],
)
def test_inputs_that_no_kernel_takes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_inputs(*views(**changes))


@pytest.mark.parametrize("place", [1, 2], ids="kv")
@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (Packing(), "allowed are four, unless cu_seqlens_k is given"),
        (Packing(paged=True), "allowed are four, since block_table is given"),
    ],
    ids=["dense", "paged"],
)
def test_dimensions_of_k_and_v_are_named(place: int, packing: Packing, message: str) -> None:
    given = list(views())
    name = given[place].name
    given[place] = view(name, shape=SHAPE[1:], strides=DENSE[1:])
    with pytest.raises(UnsupportedError, match=rf"^{name} has 3 dimensions, .*{message}"):
        check_shapes(given[0], given[1], given[2], packing)


@pytest.mark.parametrize("name", ["k", "v", "o"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.bfloat16}, r"has dtype torch.bfloat16, q has dtype torch.float16"),
        ({"device": torch.device("cuda", 1)}, r"has device cuda:1, q has device cuda:0"),
        ({"device": torch.device("cpu")}, r"has device cpu, q has device cuda:0"),
        ({"device": torch.device("meta")}, r"(is on|has device) meta[;,]"),
    ],
)
def test_a_tensor_that_is_not_like_q_is_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    unlike = view(name, **changes)
    inputs = {n: unlike if n == name else view(n) for n in "qkv"}
    check = (
        partial(check_given_output, unlike, view(), view("v"))
        if name == "o"
        else partial(check_inputs, inputs["q"], inputs["k"], inputs["v"])
    )
    with pytest.raises(UnsupportedError, match=message) as caught:
        check()
    assert f" {name} " in f" {caught.value} "


@pytest.mark.parametrize("shape", [(2, 192, 4, 64), (2, 128, 2, 64), (2, 128, 4, 128), (8, 64)])
def test_an_output_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    wanted = r"it must have \(2, 128, 4, 64\), the shape of q with the last dimension of v"
    message = rf"o has shape \({', '.join(map(str, shape))}\); {wanted}"
    with pytest.raises(UnsupportedError, match=message):
        check_given_output(view("o", shape=shape), view(), view("v", shape=(2, 77, 2, 64)))


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("shape", [(2, 192, 4, 128), (2, 128, 2, 128), (1, 128, 4, 128)])
def test_k_and_v_of_two_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    inputs = {n: view(n, shape=shape) if n == name else view(n) for n in "qkv"}
    message = r"k has shape .*, v has shape .*; k and v must agree in all but the last"
    with pytest.raises(UnsupportedError, match=message):
        check_inputs(inputs["q"], inputs["k"], inputs["v"])


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 128, 4, 128), r"k has shape \(1, .*, q has shape \(2, .* must agree in batch"),
        ((2, 128, 4, 64), r"k has shape \(2, 128, 4, 64\), .* must agree in d_head"),
        ((2, 128, 3, 128), r"q has 4 heads, k and v have 3; the heads of q must be a multiple"),
        ((2, 128, 8, 128), r"q has 4 heads, k and v have 8"),
        ((2, 128, 0, 128), r"q has 4 heads, k and v have 0"),
    ],
)
def test_keys_that_do_not_match_the_queries_are_refused(
    shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_inputs(*with_keys(shape))


PACKED = {"shape": (500, 4, 128), "strides": (512, 128, 1)}


def test_packed_tensors_have_three_dimensions() -> None:
    check_inputs(*views(**PACKED), Packing(q=True, kv=True))
    q, k, v = view("q", **PACKED), view("k"), view("v")
    check_inputs(q, k, v, Packing(q=True))
    check_inputs(view("q"), view("k", **PACKED), view("v", **PACKED), Packing(kv=True))
    for given, packing, message in (
        ((q, k, v), Packing(), r"q has 3 dimensions.*allowed are four, unless cu_seqlens_q is"),
        ((q, k, v), Packing(True, True), r"k has 4 dimensions.*three, since cu_seqlens_k is giv"),
        ((view(), k, v), Packing(q=True), r"q has 4 dimensions, .* three, since cu_seqlens_q .*"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            check_inputs(*given, packing)


def test_a_packed_tensor_is_one_batch_entry() -> None:
    packed = view("k", **PACKED)
    assert packed.with_batch.shape == (1, 500, 4, 128)
    assert packed.with_batch.layout.span == packed.layout.span
    assert view().with_batch == view()


def test_values_may_have_other_columns() -> None:
    inputs = (view("q"), view("k"), view("v", shape=(2, 128, 4, 64)))
    check_inputs(*inputs)
    check_given_output(view("o", shape=(2, 128, 4, 64), strides=(32768, 256, 64, 1)), *inputs[::2])


@pytest.mark.parametrize("shape", [(2, 1, 4, 128), (2, 77, 2, 128), (2, 0, 4, 128)])
def test_keys_may_be_of_any_length_and_of_fewer_heads(shape: tuple[int, ...]) -> None:
    check_inputs(*with_keys(shape))


@pytest.mark.parametrize("strides", [(0, 512, 128, 1), (65536, 512, 0, 1), (65536, 256, 128, 1)])
def test_an_output_that_overlaps_itself_is_refused(strides: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match=r"o has shape .* several of its elements share mem"):
        check_given_output(view("o", strides=strides), view("q"), view("v"))


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", list("qkv"))
def test_an_output_on_top_of_an_input_is_refused(name: str, sign: int) -> None:
    inputs = {n: view(n, pointer=(i + 1) << 30) for i, n in enumerate("qkv")}
    start, span = inputs[name].pointer, view().layout.span
    for distance in (0, 16, span - 16):
        with pytest.raises(UnsupportedError, match=f"o and {name} overlap in memory"):
            check_no_overlap(view("o", pointer=start + sign * distance), inputs.values())
    check_no_overlap(view("o", pointer=start + sign * span), inputs.values())


def test_an_output_between_the_inputs_of_one_buffer_passes() -> None:
    buffer = torch.empty(2, 128, 4, 4, 128, dtype=torch.float16)
    q, k, v, o = (TensorView.of(n, buffer[:, :, i]) for i, n in enumerate("qkvo"))
    check_no_overlap(o, (q, k, v))
    with pytest.raises(UnsupportedError, match="o and v overlap"):
        check_no_overlap(TensorView.of("o", buffer[:, :, 2]), (q, k, v))


def test_a_call_says_which_of_its_tensors_are_packed() -> None:
    q, lengths = torch.zeros(8, 2, 64), torch.zeros(3, dtype=torch.int32)
    assert Packing.of(Call(q, q, q)) == Packing()
    assert Packing.of(Call(q, q, q, cu_seqlens_q=lengths)) == Packing(q=True)
    assert Packing.of(Call(q, q, q, cu_seqlens_k=lengths)) == Packing(kv=True)
    paged = Call(q, q, q, seqused_k=lengths, block_table=lengths[None])
    assert Packing.of(paged) == Packing(paged=True)


DESCALES = ("q_descale", "k_descale", "v_descale")
DIFFERENTIABLE = ("q", "k", "v", "out", "sinks", *DESCALES, "another")


def floating() -> dict[str, Any]:
    """Every tensor of a call that may have a gradient, and one beside the call."""
    given = {name: torch.zeros(1, 8, 2, 64) for name in DIFFERENTIABLE}
    return given | {"sinks": torch.zeros(2)} | {name: torch.ones(1, 2) for name in DESCALES}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_refused_only_where_they_would_be_recorded(name: str) -> None:
    given = floating()
    other = given.pop("another")
    call = Call(**given)
    check_no_grad(call, other, None)
    (other if name == "another" else given[name]).requires_grad_()
    with torch.no_grad():
        check_no_grad(call, other)
    with torch.inference_mode():
        check_no_grad(call, other)
    with pytest.raises(UnsupportedError, match=r"call attention, which is, .* torch.no_grad\(\)"):
        check_no_grad(call, other)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_tangents_are_refused_whether_or_not_gradients_are_recorded(name: str) -> None:
    given = floating()
    with forward_ad.dual_level():
        check_no_grad(Call(**{n: t for n, t in given.items() if n != "another"}), given["another"])
        given[name] = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
        other = given.pop("another")
        for is_enabled in (True, False):
            with (
                torch.set_grad_enabled(is_enabled),
                pytest.raises(
                    UnsupportedError, match=r"a tensor has a tangent, .* no forward-mode"
                ),
            ):
                check_no_grad(Call(**given), None, other)


def test_views_that_negate_are_refused() -> None:
    values = torch.zeros(2, 3, dtype=torch.complex64).conj().imag
    with pytest.raises(UnsupportedError, match=r"holds its values negated; pass q\.resolve_neg"):
        TensorView.of("q", values)

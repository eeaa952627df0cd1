# SPDX-License-Identifier: Apache-2.0
"""Each rule on the inputs of a call: what breaks it, what the message says, what just passes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from flash_attention.checks import (
    MAX_ROWS,
    TensorView,
    check_causal_fits,
    check_config_fits,
    check_config_type,
    check_given_output,
    check_inputs,
    check_lse_fits,
    check_no_grad,
    check_no_overlap,
    check_pointers,
    check_softmax_scale,
)
from flash_attention.errors import KernelConfigError, UnsupportedError
from flash_attention.kernel_configs import (
    DType,
    FlashForwardKernelConfig,
    HopperForwardKernelConfig,
    KernelConfig,
)

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 128, 64, 32, 4, True, True, True, 0, 2, 2, False, True
)
HOPPER = HopperForwardKernelConfig(DType.FP16, 128, 2, 128, 1, tma=True)
GPU = torch.device("cuda", 0)
SHAPE = (2, 128, 4, 128)
DENSE = (65536, 512, 128, 1)


def view(name: str = "q", **changes: Any) -> TensorView:
    plain = TensorView(name, SHAPE, DENSE, torch.float16, GPU)
    return replace(plain, **changes)


def views(**changes: Any) -> tuple[TensorView, TensorView, TensorView]:
    return view("q", **changes), view("k", **changes), view("v", **changes)


def with_keys(shape: tuple[int, ...]) -> tuple[TensorView, TensorView, TensorView]:
    """q, and k and v of another shape."""
    return view("q"), view("k", shape=shape), view("v", shape=shape)


@pytest.mark.parametrize("config", [CONFIG, HOPPER], ids=["first", "hopper"])
@pytest.mark.parametrize("device", [GPU, torch.device("cpu")], ids=str)
def test_good_tensors_pass_every_rule(device: torch.device, config: KernelConfig) -> None:
    inputs = views(pointer=1 << 20, device=device)
    o = view("o", pointer=1 << 30, device=device)
    check_config_type(config)
    check_inputs(*inputs)
    check_given_output(o, inputs[0])
    check_config_fits(config, (*inputs, o))
    check_causal_fits(config, False)
    check_lse_fits(config, False)
    check_pointers((*inputs, o))
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
        (None, r"q is a NoneType; pass a torch.Tensor of shape \(batch, seq, heads, d_head\)"),
        (torch.zeros(4, 4).to_sparse(), r"q has layout torch.sparse_coo.*to_dense"),
    ],
)
def test_what_is_no_dense_tensor_is_refused(thing: object, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        TensorView.of("q", thing)


@pytest.mark.parametrize("thing", [None, 3, "(FP16, 128, 64, 32, 4)", {}, FlashForwardKernelConfig])
def test_what_is_no_config_is_refused(thing: object) -> None:
    message = "pass a FlashForwardKernelConfig or a HopperForwardKernelConfig"
    with pytest.raises(KernelConfigError, match=message) as caught:
        check_config_type(thing)
    assert caught.value.rule == "type"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": torch.device("meta")}, r"on meta; a CUDA tensor is needed.*q\.cpu\(\) to have"),
        ({"device": torch.device("xla", 0)}, r"on xla:0; a CUDA tensor is needed"),
        ({"dtype": torch.float32}, r"is torch.float32; allowed are torch.float16 and torch.bfl"),
        ({"dtype": torch.float64}, r"is torch.float64"),
        ({"dtype": torch.int16}, r"is torch.int16"),
        ({"shape": SHAPE[1:], "strides": DENSE[1:]}, r"has 3 dimensions, shape \(128, 4, 128\)"),
        ({"shape": (1, *SHAPE), "strides": (0, *DENSE)}, r"has 5 dimensions"),
        ({"shape": (2, MAX_ROWS + 1, 4, 128)}, r"q has 1073741825 rows; a launch takes at most"),
        ({"strides": (65536, 512, 1, 4)}, r"last dimension of q has stride 4; it must be contig"),
        ({"strides": (65536, 512, 128, 0)}, r"last dimension of q has stride 0"),
        ({"strides": (65540, 512, 128, 1)}, r"batch stride of q is 65540 elements; .* multiple of"),
        ({"strides": (65536, 516, 128, 1)}, r"seq stride of q is 516 elements"),
        ({"strides": (65536, 512, 129, 1)}, r"heads stride of q is 129 elements"),
    ],
)
def test_inputs_that_no_kernel_takes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_inputs(*views(**changes))


@pytest.mark.parametrize("name", ["k", "v", "o"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.bfloat16}, r"has dtype torch.bfloat16, q has dtype torch.float16"),
        ({"device": torch.device("cuda", 1)}, r"has device cuda:1, q has device cuda:0"),
        ({"device": torch.device("cpu")}, r"has device cpu, q has device cuda:0"),
        ({"device": torch.device("meta")}, r"is on meta; a CUDA tensor is needed"),
        ({"strides": (65536, 512, 128, 2)}, r"the last dimension of . has stride 2"),
        ({"strides": (65536, 4, 128, 1)}, r"the seq stride of . is 4 elements"),
    ],
)
def test_a_tensor_that_is_not_like_q_is_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    unlike = view(name, **changes)
    inputs = {n: unlike if n == name else view(n) for n in "qkv"}
    check = (
        partial(check_given_output, unlike, view())
        if name == "o"
        else partial(check_inputs, **inputs)
    )
    with pytest.raises(UnsupportedError, match=message) as caught:
        check()
    assert f" {name} " in f" {caught.value} "


@pytest.mark.parametrize("shape", [(2, 192, 4, 128), (2, 128, 2, 128), (1, 128, 4, 128)])
def test_an_output_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    message = rf"o has shape \({', '.join(map(str, shape))}\), q has shape \(2, 128, 4, 128\)"
    with pytest.raises(UnsupportedError, match=message):
        check_given_output(view("o", shape=shape), view())


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("shape", [(2, 192, 4, 128), (2, 128, 2, 128), (1, 128, 4, 128)])
def test_k_and_v_of_two_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    inputs = {n: view(n, shape=shape) if n == name else view(n) for n in "qkv"}
    message = r"k has shape .*, v has shape .*; k and v must agree in shape"
    with pytest.raises(UnsupportedError, match=message):
        check_inputs(**inputs)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 128, 4, 128), r"k has shape \(1, .*, q has shape \(2, .* agree in batch and d_head"),
        ((2, 128, 4, 64), r"k has shape \(2, 128, 4, 64\), .* agree in batch and d_head"),
        ((2, 128, 3, 128), r"q has 4 heads, k and v have 3; the heads of q must be a multiple"),
        ((2, 128, 8, 128), r"q has 4 heads, k and v have 8"),
        ((2, 128, 0, 128), r"q has 4 heads, k and v have 0"),
        ((2, MAX_ROWS + 1, 4, 128), r"k has 1073741825 rows"),
    ],
)
def test_keys_that_do_not_match_the_queries_are_refused(
    shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_inputs(*with_keys(shape))


@pytest.mark.parametrize(
    "shape", [(2, 1, 4, 128), (2, 77, 2, 128), (2, MAX_ROWS, 1, 128), (2, 0, 4, 128)]
)
def test_keys_may_be_of_any_length_and_of_fewer_heads(shape: tuple[int, ...]) -> None:
    inputs = with_keys(shape)
    check_inputs(*inputs)
    check_config_fits(HOPPER, (*inputs, view("o")))
    with pytest.raises(UnsupportedError, match=r"do not take fewer heads .*Hopper.* sm_90"):
        check_config_fits(CONFIG, (*inputs, view("o")))


@pytest.mark.parametrize("shape", [(0, 128, 4, 128), (2, 0, 4, 128), (2, 128, 0, 128)])
def test_empty_tensors_are_for_the_hopper_family(shape: tuple[int, ...]) -> None:
    tensors = (*views(shape=shape), view("o", shape=shape))
    check_inputs(*tensors[:3])
    check_given_output(tensors[3], tensors[0])
    check_config_fits(HOPPER, tensors)
    with pytest.raises(UnsupportedError, match=r"nothing to compute; every dimension must be at"):
        check_config_fits(CONFIG, tensors)


@pytest.mark.parametrize("dim", ["batch", "heads"])
def test_the_sides_of_a_grid_have_a_limit(dim: str) -> None:
    shape = (65536, 128, 4, 128) if dim == "batch" else (2, 128, 65536, 128)
    tensors = (*views(shape=shape), view("o", shape=shape))
    check_config_fits(HOPPER, tensors)
    message = rf"{dim} is 65536; a launch takes at most 65535, split the tensors along {dim}"
    with pytest.raises(UnsupportedError, match=message):
        check_config_fits(CONFIG, tensors)


def test_a_flat_grid_has_a_limit_too() -> None:
    shape = (1 << 15, 128 << 15, 2, 128)
    tensors = (*views(shape=shape), view("o", shape=shape))
    with pytest.raises(
        UnsupportedError, match="2147483648 tiles of 128 rows of one head; a launch"
    ):
        check_config_fits(HOPPER, tensors)


def test_masks_and_logarithms_are_for_the_hopper_family() -> None:
    check_causal_fits(HOPPER, True)
    check_lse_fits(HOPPER, True)
    with pytest.raises(UnsupportedError, match=r"causal=True, .*HopperForwardKernelConfig.*sm_90"):
        check_causal_fits(CONFIG, True)
    with pytest.raises(UnsupportedError, match=r"return_lse=True, .*HopperForwardKernelC.*sm_90"):
        check_lse_fits(CONFIG, True)


@pytest.mark.parametrize("scale", [None, 0.125, 1, 1e-30, 1e38, np.float32(0.5), np.float64(2)])
def test_positive_scales_pass(scale: object) -> None:
    check_softmax_scale(scale)


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
def test_other_scales_are_refused(scale: object, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_softmax_scale(scale)


def test_broadcast_inputs_and_odd_strides_of_single_entries_pass() -> None:
    check_inputs(*views(strides=(0, 512, 0, 1)))
    check_inputs(*views(shape=(1, 128, 1, 128), strides=(3, 128, 5, 1)))


@pytest.mark.parametrize("strides", [(0, 512, 128, 1), (65536, 512, 0, 1), (65536, 256, 128, 1)])
def test_an_output_that_overlaps_itself_is_refused(strides: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match=r"o has shape .* several of its elements share mem"):
        check_given_output(view("o", strides=strides), view("q"))


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        ({"dtype": DType.BF16}, SHAPE, r"config is for torch.bfloat16, the tensors are torch.floa"),
        ({"d_head": 64}, SHAPE, r"config is for d_head 64, the tensors have d_head 128"),
        ({"B_r": 128}, (2, 192, 4, 128), r"q has 192 rows, .* B_r = 128; pad to 256 rows"),
        ({}, (2, 96, 4, 128), r"q has 96 rows, .* B_r = 64; pad to 128 rows"),
        ({"B_c": 128}, (2, 192, 4, 128), r"k has 192 rows, .* B_c = 128; pad to 256 rows"),
        ({}, (2, 1, 4, 128), r"q has 1 rows, .* pad to 64 rows"),
    ],
)
def test_tensors_that_the_first_family_is_not_for_are_refused(
    config: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    tensors = (*views(shape=shape), view("o", shape=shape))
    with pytest.raises(UnsupportedError, match=message):
        check_config_fits(replace(CONFIG, **config), tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": DType.BF16}, r"config is for torch.bfloat16, the tensors are torch.floa"),
        ({"d_head": 64}, r"config is for d_head 64, the tensors have d_head 128"),
    ],
)
def test_tensors_that_the_hopper_family_is_not_for_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_config_fits(replace(HOPPER, **changes), (*views(), view("o")))


@pytest.mark.parametrize("name", list("qkvo"))
def test_a_static_row_stride_binds_all_four_tensors(name: str) -> None:
    config = replace(CONFIG, static_row_stride=512)
    tensors = {n: view(n) for n in "qkvo"}
    check_config_fits(config, list(tensors.values()))
    tensors[name] = view(name, strides=(128, 256, 32768, 1))
    with pytest.raises(UnsupportedError, match=rf"rows of {name} are 256 apart.*512|512.*{name}"):
        check_config_fits(config, list(tensors.values()))


@pytest.mark.parametrize("past", [2, 4, 8, 14])
@pytest.mark.parametrize("name", list("qkvo"))
def test_a_pointer_off_sixteen_bytes_is_refused(name: str, past: int) -> None:
    tensors = {n: view(n, pointer=4096) for n in "qkvo"}
    tensors[name] = view(name, pointer=4096 + past)
    with pytest.raises(UnsupportedError, match=rf"{name} starts at .* {past} bytes past a mult"):
        check_pointers(tensors.values())


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


def test_gradients_are_refused_only_where_they_would_be_recorded() -> None:
    check_no_grad(False)
    with torch.no_grad():
        check_no_grad(True)
    with torch.inference_mode():
        check_no_grad(True)
    with pytest.raises(UnsupportedError, match=r"torch.no_grad\(\) or pass q.detach\(\)"):
        check_no_grad(True)

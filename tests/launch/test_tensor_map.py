# SPDX-License-Identifier: Apache-2.0
"""Tensor maps: what is described of a tensor, what the emulator reads by it, what is encoded."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch

from flash_attention.call.tensors import TensorView
from flash_attention.compile.unit import Unit
from flash_attention.errors import LaunchError, UnsupportedError
from flash_attention.families.forward_args import ForwardKernelArgs
from flash_attention.families.recipe import Geometry, MapDescription, Step
from flash_attention.families.sm90.forward.features import Sm90Features
from flash_attention.families.sm90.forward.tensor_maps import (
    MAX_STRIDE_BYTES,
    describe,
    describe_all,
)
from flash_attention.kernel_configs import DType, HopperForwardKernelConfig
from flash_attention.launch import driver, emulation, tensor_map
from flash_attention.launch.tensor_map import (
    MAP_ALIGNMENT,
    MAP_BYTES,
    EncodedMaps,
    MapParameters,
    encode,
)
from tests.unchecked import unchecked

CONFIG = HopperForwardKernelConfig(DType.BF16, 128, 2, 96, 2, tma=True, specialised=True)
PLAIN = Sm90Features()
SIZES = (128, 4, 128, 2)
ARRAYS = ("4Q", "3Q", "4I", "4I")  # of sizes, strides, boxes and steps


def view(name: str = "q", **changes: Any) -> TensorView:
    dense = TensorView(
        name, (2, 128, 4, 128), (65536, 512, 128, 1), torch.bfloat16, torch.device("cpu")
    )
    return replace(dense, **changes)


def described(tensor: TensorView, rows: int = 64, panel: int = 64) -> MapDescription:
    return describe(tensor, (panel, 1, rows))


def encoded_at(description: MapDescription, address: int, device_index: int) -> Any:
    return encode(MapParameters(description), address, description.dims, device_index)


def test_dimensions_and_byte_strides_run_from_the_innermost_out() -> None:
    seen = described(view(), rows=96)
    assert seen.dims == (128, 4, 128, 2)
    assert seen.strides == (256, 1024, 131072)
    assert (seen.box, seen.swizzle) == ((64, 1, 96, 1), 128)
    heads_first = described(view(strides=(65536, 128, 16384, 1)))
    assert heads_first.strides == (32768, 256, 131072)
    assert described(view(strides=(0, 512, 0, 1))).strides == (0, 1024, 0)


def test_a_box_may_have_every_other_row() -> None:
    assert described(view()).steps == (1, 1, 1, 1)
    assert describe(view(), (64, 1, 96), every=2).steps == (1, 1, 2, 1)


@pytest.mark.parametrize(
    ("d_head", "panel", "swizzle"),
    [(64, 64, 128), (96, 32, 64), (128, 64, 128), (192, 64, 128), (256, 64, 128)],
)
def test_a_panel_is_the_kernels_whatever_the_tensors_columns(
    d_head: int, panel: int, swizzle: int
) -> None:
    config = unchecked(CONFIG, d_head=d_head)
    for columns in (8, 40, d_head):
        narrow = view(shape=(2, 128, 4, columns), strides=(131072, 1024, 256, 1))
        for seen in describe_all(config, [narrow] * 4, PLAIN).values():
            assert (seen.dims[0], seen.box[0], seen.swizzle) == (columns, panel, swizzle)
    assert d_head % panel == 0


def test_a_dimension_of_one_entry_gets_a_stride_that_tma_takes() -> None:
    seen = described(view(shape=(1, 128, 1, 128), strides=(3, 128, 1 << 50, 1)))
    assert seen.dims == (128, 1, 128, 1)
    assert seen.strides == (256, 256, 256)


@pytest.mark.parametrize(("dim", "name"), [(0, "batch"), (1, "seq"), (2, "heads")])
def test_a_stride_beyond_tma_is_refused(dim: int, name: str) -> None:
    strides = [65536, 512, 128, 1]
    strides[dim] = MAX_STRIDE_BYTES // 2 - 8
    described(view(strides=tuple(strides)))
    strides[dim] = MAX_STRIDE_BYTES // 2
    message = rf"the {name} stride of k is {MAX_STRIDE_BYTES} bytes; TMA takes less.*tma=False"
    with pytest.raises(UnsupportedError, match=message):
        described(view("k", strides=tuple(strides)))


def test_a_kernel_moves_blocks_of_keys_a_warpgroups_queries_and_a_warps_outputs() -> None:
    maps = describe_all(CONFIG, [view(name) for name in "qkvo"], PLAIN)
    assert list(maps) == list("qkvo")
    assert [seen.box for seen in maps.values()] == [(64, 1, rows, 1) for rows in (64, 96, 96, 16)]
    assert [seen.promotion for seen in maps.values()] == [256, 256, 256, 0]


@pytest.mark.parametrize(("columns", "promotion"), [(64, 256), (72, 128), (80, 128), (96, 256)])
def test_a_load_brings_less_into_l2_where_rows_are_no_multiple_of_64_bytes(
    columns: int, promotion: int
) -> None:
    views = [view(name, shape=(2, 128, 4, columns)) for name in "qkvo"]
    maps = describe_all(CONFIG, views, PLAIN)
    assert [seen.promotion for seen in maps.values()] == [promotion] * 3 + [0]


def test_boxes_follow_heads_side_by_side_pages_and_short_queries() -> None:
    features = Sm90Features(heads_together=4, page_keys=32, decode=True)
    maps = describe_all(CONFIG, [view(name) for name in "qkvo"], features)
    boxes = [(64, 4, 16, 1), (64, 1, 32, 1), (64, 1, 32, 1), (64, 4, 4, 1)]
    assert [seen.box for seen in maps.values()] == boxes
    assert [seen.promotion for seen in maps.values()] == [256, 0, 0, 0]
    seven = describe_all(CONFIG, [view(name) for name in "qkvo"], Sm90Features(heads_together=7))
    assert [seven[name].box for name in "qo"] == [(64, 7, 9, 1), (64, 1, 16, 1)]


def test_the_emulator_gets_the_same_description() -> None:
    seen = describe(view(), (64, 1, 64), every=2)
    step = Step(Unit("", "", ""), Geometry((1, 1, 1), 32), {"k": seen})
    (emulated,) = emulation._maps(step, ForwardKernelArgs(q=1 << 19, k=1 << 20))
    assert emulated.address == 1 << 20
    assert (emulated.dims, emulated.strides) == (seen.dims, seen.strides)
    assert (emulated.box, emulated.swizzle) == (seen.box, seen.swizzle)
    assert emulated.box_bytes == 64 * 32 * 2


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"dtype": torch.float16}, (6, 3, 0)),
        ({"dtype": torch.bfloat16}, (9, 3, 0)),
        ({"promotion": 256}, (9, 3, 3)),
        ({"swizzle": 64}, (9, 2, 0)),
        ({"swizzle": 32}, (9, 1, 0)),
        ({"swizzle": 0}, (9, 0, 0)),
        ({"steps": (1, 1, 2, 1)}, (9, 3, 0)),
    ],
    ids=str,
)
def test_the_driver_is_told_what_is_described(
    changes: dict[str, Any], numbers: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are the driver's, of the element type, the swizzle and the promotion."""
    told: list[Any] = []

    def encode_tiled(*arguments: Any) -> int:
        told.extend(arguments)
        return 0

    monkeypatch.setattr(tensor_map, "_encode_function", lambda: encode_tiled)
    seen = replace(described(view()), **changes)
    encoded = encoded_at(seen, 1 << 30, 0)
    assert told[0] == encoded.at
    assert encoded.at % MAP_ALIGNMENT == 0
    first = ctypes.addressof(encoded.room)
    assert first <= encoded.at
    assert encoded.at + MAP_BYTES <= first + ctypes.sizeof(encoded.room)
    element, swizzle, promotion = numbers
    assert told[1:4] == [element, 4, 1 << 30]
    arrays = [struct.unpack(f"<{n}", each) for n, each in zip(ARRAYS, told[4:8], strict=True)]
    assert arrays == [seen.dims, seen.strides, seen.box, seen.steps]
    assert told[8:] == [0, swizzle, promotion, 0]
    assert len(told) == len(tensor_map.PARAMETERS)


def test_a_thread_without_a_context_gets_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound: list[int] = []

    def encode_tiled(*arguments: Any) -> int:
        return 0 if bound else int(driver.NO_CONTEXT)

    monkeypatch.setattr(tensor_map, "_encode_function", lambda: encode_tiled)
    monkeypatch.setattr(driver, "bind_primary_context", bound.append)
    encoded_at(described(view()), 1 << 30, 2)
    assert bound == [2]


def test_maps_are_made_once_an_address_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def fake(how: object, address: int, dims: object, device_index: int) -> tensor_map.EncodedMap:
        made.append(address)
        assert (dims, device_index) == (SIZES, 3)
        return tensor_map.EncodedMap(address, (ctypes.c_ubyte * MAP_BYTES)())

    monkeypatch.setattr(tensor_map, "encode", fake)
    monkeypatch.setattr(tensor_map, "MAX_ENCODED", 2)
    seen = described(view())
    maps = EncodedMaps(seen, 3, 2)
    size = maps.size
    assert size == SIZES[2]
    first = maps[16, size]
    assert maps[16, size] is first
    assert maps[32, size] is not first
    assert made == [16, 32]
    assert maps[48, size] is not first
    assert maps[16, size] is not first
    assert made == [16, 32, 48, 16]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a driver")
def test_without_a_driver_the_error_says_what_is_missing() -> None:
    message = r"cuTensorMapEncodeTiled could not be called.*\n.*NVIDIA driver"
    with pytest.raises(LaunchError, match=message):
        encoded_at(described(view()), 0, 0)


def content(encoded: tensor_map.EncodedMap) -> bytes:
    return ctypes.string_at(encoded.at, MAP_BYTES)


@pytest.mark.gpu("sm_90")
def test_the_driver_encodes_on_64_bytes_and_tells_tensors_apart() -> None:
    base = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda").data_ptr()
    for seen in describe_all(CONFIG, [view(name) for name in "qkvo"], PLAIN).values():
        encoded = [encoded_at(seen, base + 16 * i, 0) for i in range(16)]
        assert {each.at % MAP_ALIGNMENT for each in encoded} == {0}
        assert len(set(map(content, encoded))) == 16
        assert content(encoded_at(seen, base, 0)) == content(encoded[0])


@pytest.mark.gpu("sm_90")
@pytest.mark.parametrize(
    "changes",
    [
        {"strides": (0, 512, 0, 1)},
        {"shape": (1, 1, 1, 128), "strides": (1, 1, 1, 1)},
        {"shape": (1, 1 << 20, 1, 128), "strides": (1, 1024, 1, 1)},
        {"strides": (MAX_STRIDE_BYTES // 2 - 8, 512, 128, 1)},
        {"strides": (128, 512, 256, 1)},
    ],
)
def test_the_driver_takes_what_the_checks_let_through(changes: dict[str, Any]) -> None:
    assert any(content(encoded_at(described(view(**changes)), 1 << 30, 0)))


@pytest.mark.gpu("sm_90")
def test_a_refusal_of_the_driver_names_its_error() -> None:
    message = r"cuTensorMapEncodeTiled failed: CUDA_ERROR_INVALID_VALUE \(1\)"
    with pytest.raises(LaunchError, match=message):
        encoded_at(replace(described(view()), box=(64, 1, 512, 1)), 1 << 30, 0)
    with pytest.raises(LaunchError, match=message):
        encoded_at(described(view()), (1 << 30) + 8, 0)

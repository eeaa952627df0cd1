# SPDX-License-Identifier: Apache-2.0
"""Texture objects as arguments: what a fetch gives at every address mode, filter and read mode."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator import Empty, LaunchError, Struct, Texture, UserKernel
from ptx_emulator.errors import UnsupportedError

SOURCE = """
struct Pair { cudaTextureObject_t image; float scale; };
extern "C" {
__global__ void line(float* out, const float* x, cudaTextureObject_t image, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex1D<float>(image, x[i]);
}
__global__ void numbers(unsigned* out, const int* x, cudaTextureObject_t image) {
  uint4 texel = tex1Dfetch<uint4>(image, x[threadIdx.x]);
  out[2 * threadIdx.x] = texel.x;
  out[2 * threadIdx.x + 1] = texel.w;
}
__global__ void plane(float2* out, const float2* at, cudaTextureObject_t image) {
  float2 place = at[threadIdx.x];
  out[threadIdx.x] = tex2D<float2>(image, place.x, place.y);
}
__global__ void solid(float* out, const float4* at, cudaTextureObject_t image) {
  float4 place = at[threadIdx.x];
  out[threadIdx.x] = tex3D<float>(image, place.x, place.y, place.z);
}
__global__ void layers(float* out, const float4* at, cudaTextureObject_t image) {
  float4 place = at[threadIdx.x];
  out[threadIdx.x] = tex2DLayered<float>(image, place.x, place.y, int(place.z));
}
__global__ void signs(int* out, Pair pair) {
  out[threadIdx.x] = int(pair.scale) * tex2D<int>(pair.image, threadIdx.x + 0.5f, 0.5f);
}
}
"""


@cache
def kernel(name: str) -> UserKernel:
    return UserKernel.of_source(SOURCE, name)


def along_line(texture: Texture, x: NDArray[np.float32]) -> NDArray[Any]:
    result = kernel("line").run(Empty(len(x)), x, texture, len(x), grid=2, block=32)
    assert not result.findings
    return result.arrays[0]


def floats(*values: Any) -> NDArray[np.float32]:
    return np.array(values, np.float32)


VALUES = floats(1, 2, 4, 8)


@pytest.mark.parametrize(
    ("address", "normalized", "wanted"),
    [
        ("clamp", False, [1, 1, 2, 8, 8]),
        ("border", False, [0, 1, 2, 8, 0]),
        ("wrap", False, [1, 1, 2, 8, 8]),  # only normalised coordinates wrap
        ("clamp", True, [1, 1, 2, 8, 8]),
        ("wrap", True, [4, 1, 2, 8, 2]),
        ("mirror", True, [2, 1, 2, 8, 4]),
    ],
)
def test_the_nearest_texel_of_every_address_mode(
    address: str, normalized: bool, wanted: list[float]
) -> None:
    x = floats(-1.5, 0.5, 1.9, 3.0, 5.5)
    texture = Texture(VALUES, 1, address=address, normalized=normalized)
    got = along_line(texture, x / np.float32(4 if normalized else 1))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("address", "wanted"),
    [("clamp", [1, 1.5, 7, 8]), ("border", [0.5, 1.5, 7, 4])],
)
def test_a_linear_filter_weighs_the_neighbours(address: str, wanted: list[float]) -> None:
    texture = Texture(VALUES, 1, address=address, linear=True)
    np.testing.assert_array_equal(along_line(texture, floats(0, 1, 3.25, 4)), wanted)


def test_weights_have_eight_bits() -> None:
    x = np.linspace(0.5, 1.5, 40, dtype=np.float32)
    got = along_line(Texture(floats(0, 256), 1, linear=True), x)
    np.testing.assert_array_equal(got, np.rint(256 * (x.astype(np.float64) - 0.5)))


def test_a_linear_filter_wraps() -> None:
    texture = Texture(VALUES, 1, address="wrap", linear=True, normalized=True)
    np.testing.assert_array_equal(along_line(texture, floats(0, 1)), [4.5, 4.5])


def test_numbers_of_texels_and_channels() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    at = np.array([2, 0, -1, 3], np.int32)
    result = kernel("numbers").run(Empty(8, np.uint32), at, Texture(image, 1), grid=1, block=4)
    np.testing.assert_array_equal(result.arrays[0], [8, 11, 0, 3, 0, 0, 0, 0])


def test_a_plane_of_pairs_as_floats() -> None:
    image = np.random.default_rng(0).integers(-128, 128, (5, 7, 2)).astype(np.int8)
    image[0, 0] = -128
    y, x = (part.reshape(-1) for part in np.mgrid[:5, :7])
    at = np.stack((x + 0.5, y + 0.25), 1).astype(np.float32)
    texture = Texture(image, as_floats=True)
    result = kernel("plane").run(Empty((35, 2)), at, texture, grid=1, block=35)
    wanted = np.maximum(image.reshape(35, 2) / np.float32(127), -1)
    np.testing.assert_array_equal(result.arrays[0], wanted)


def test_three_axes_and_layers() -> None:
    image = np.random.default_rng(1).random((3, 4, 5), np.float32)
    at = floats((1.5, 2.5, 0.5, 0), (4.5, 3.5, 2.5, 0), (0.5, 0.5, 9, 0))
    for name, texture in (("solid", Texture(image, 3)), ("layers", Texture(image, layered=True))):
        result = kernel(name).run(Empty(3), at, texture, grid=1, block=3)
        np.testing.assert_array_equal(
            result.arrays[0], [image[0, 2, 1], image[2, 3, 4], image[2, 0, 0]]
        )


def test_middle_of_eight_texels() -> None:
    image = np.random.default_rng(2).integers(0, 9, (2, 2, 2)).astype(np.float32)
    at = np.ones((1, 4), np.float32)
    texture = Texture(image, 3, linear=True)
    result = kernel("solid").run(Empty(1), at, texture, grid=1, block=1)
    assert result.arrays[0][0] == image.mean()


def test_a_texture_in_a_structure() -> None:
    image = np.array([[5, -6, 7]], np.int16)
    out = kernel("signs").run(Empty(3, np.int32), Struct(Texture(image), 2.0), grid=1, block=3)
    np.testing.assert_array_equal(out.arrays[0], [10, -12, 14])


def test_what_is_no_texture_of_the_kind_ends_the_launch() -> None:
    x = np.zeros(1, np.float32)
    for given, why in ((7, "reads 0x7, which is no texture object"), (Texture(x[None]), "of 2d")):
        with pytest.raises(LaunchError, match=f"tex.1d .*{why}"):
            kernel("line").run(Empty(1), x, given, 1, grid=1, block=1)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"array": np.zeros((2, 3, 3))}, "1, 2 or 4 channels"),
        ({"array": np.zeros(3)}, "2 axes, and its array the shape"),
        ({"array": np.zeros((2, 2))}, "at most 4 bytes"),
        ({"array": VALUES, "axes": 1, "address": "near"}, "clamp, border, wrap, mirror"),
        ({"array": np.zeros((2, 2), np.int8), "linear": True}, "as_floats=True"),
    ],
)
def test_arrays_that_are_no_textures(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        Texture(**given)


def test_a_parameter_too_small_for_a_texture() -> None:
    with pytest.raises(UnsupportedError, match="is a Texture, and the parameter has 4 bytes"):
        kernel("line").run(Empty(1), VALUES, 1, Texture(VALUES, 1), grid=1, block=1)

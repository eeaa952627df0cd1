# SPDX-License-Identifier: Apache-2.0
"""Headers that kernels name and NVRTC does not have: what device code uses of them.

NVRTC knows printf, assert and the mathematical functions by itself.
"""

from __future__ import annotations

_INTEGERS = "\n".join(
    f"typedef {sign}{c} {prefix}int{bits}_t;"
    for bits, c in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
    for sign, prefix in (("signed ", ""), ("unsigned ", "u"))
)
_SIZES = "typedef unsigned long long uintptr_t;\ntypedef long long intptr_t;"
_FLOATS = """
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define M_PI 3.14159265358979323846
#define HUGE_VALF INFINITY
"""
_FLOAT_LIMITS = """
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
"""
_INTEGER_LIMITS = """
#define CHAR_BIT 8
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ull
"""
_DRIVER = """
typedef struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; } CUtensorMap;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;
"""
_NOTHING = ("cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h")
_IN_NVRTC = ("stdio", "assert", "string", "stddef")
_WORDS = "\n".join(f"typedef unsigned {c} u{c};" for c in ("short", "int", "long"))


def _guarded(text: str) -> str:
    return f"#pragma once\n{text}\n"


def _both_names(name: str, text: str) -> dict[str, str]:
    """As C and as C++ name it."""
    return {f"{name}.h": _guarded(text), f"c{name}": _guarded(f"#include <{name}.h>")}


CUDA_HEADERS = dict.fromkeys(_NOTHING, _guarded(""))  # where no toolkit is installed
HOST_HEADERS: dict[str, str] = {
    "cuda.h": _guarded(_DRIVER),
    "cuda_profiler_api.h": _guarded(""),
    **{header: text for name in _IN_NVRTC for header, text in _both_names(name, "").items()},
    **_both_names("stdint", f"{_INTEGERS}\n{_SIZES}"),
    **_both_names("stdlib", _WORDS),
    **_both_names("math", _FLOATS),
    **_both_names("float", _FLOAT_LIMITS),
    **_both_names("limits", _INTEGER_LIMITS),
}

_OF_CUBLAS = ("cuda_fp16.h", "cuda_bf16.h", "cuComplex.h")
TYPES_OF = {  # headers of the toolkit that those of libraries include
    **dict.fromkeys(("cublas_v2.h", "cublas.h", "cublas_api.h", "cublasLt.h"), _OF_CUBLAS),
    **dict.fromkeys(("cusolverDn.h", "cusparse.h", "cusparse_v2.h"), _OF_CUBLAS),
    **dict.fromkeys(("cufft.h", "cufftXt.h"), ("cuComplex.h",)),
}
IMPLIED = {  # what nvcc includes before every text
    "ptx_emulator/implied.h": _guarded(
        "#include <math.h>\n#include <stdlib.h>\n#include <stdint.h>"
    )
}

# SPDX-License-Identifier: Apache-2.0
"""The kernels that run a problem, and a digest of all that their machine code depends on."""

from __future__ import annotations

import hashlib
from functools import cache

from flash_attention.arch import Arch
from flash_attention.call.features import Features
from flash_attention.choose.dense import DenseBackwardProblem
from flash_attention.compile.cache import cache_key
from flash_attention.compile.includes import include_closure
from flash_attention.compile.nvrtc import compiler_identity, options
from flash_attention.compile.unit import Unit
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import KernelConfig

CompiledFor = Features | DenseBackwardProblem
"""What kernels depend on besides the config: `DenseProblem.compiled_for` says it."""
DIGITS = 16


def kernels_of(config: KernelConfig, compiled_for: CompiledFor, arch: Arch) -> tuple[Unit, ...]:
    """The translation units of all kernels that a config runs a problem with."""
    if isinstance(compiled_for, Features):
        return (unit_of(config, compiled_for, arch),)
    return compiled_for.units(config, arch)


@cache
def kernel_digest(config: KernelConfig, compiled_for: CompiledFor, arch: Arch) -> str:
    """A digest of all that the machine code depends on: of one kernel, as the compile cache has
    it."""
    keys = [_cache_key(unit) for unit in kernels_of(config, compiled_for, arch)]
    if len(keys) == 1:
        return keys[0][:DIGITS]
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:DIGITS]


def _cache_key(unit: Unit) -> str:
    return cache_key(
        unit.source,
        _headers(unit.source),
        options=options(unit.target),
        compiler=compiler_identity(),
        arch=unit.target,
    )


def _headers(source: str) -> dict[str, str]:
    includes = [line for line in source.splitlines() if line.startswith("#include")]
    return _closure("\n".join(includes))


_closure = cache(include_closure)  # hundreds of kernels share a few dozen headers

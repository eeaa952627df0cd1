# SPDX-License-Identifier: Apache-2.0
"""What `doctor` looks at, one function a fact; a probe may raise, `examine` makes that advice."""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch

from flash_attention import compile as compiler
from flash_attention.arch import DEFAULT_ARCH
from flash_attention.compile.cache import DiskCache
from flash_attention.compile.cache_folder import shown, size_text
from flash_attention.compile.library import nvrtc_library
from flash_attention.errors import UnsupportedError
from flash_attention.forward import forward
from flash_attention.ladder import get_ladder
from flash_attention.launch.device import current_arch
from flash_attention.launch.emulate import emulate
from flash_attention.launch.kernels import compile_config
from flash_attention.reference import judge as testing
from flash_attention.version import DISTRIBUTION, UNKNOWN, VERSION
from flash_attention_workbench.bench.environment import driver_version
from flash_attention_workbench.commands.options import last_rung_on
from flash_attention_workbench.inspect import sass

Status = Literal["ok", "missing", "failed"]


@dataclass(frozen=True)
class Probe:
    """One question; `essential` ones must be answered for the package to be of any use."""

    name: str
    ask: Callable[[], str]
    advice: str
    essential: bool = False


@dataclass(frozen=True)
class Finding:
    """The answer to one probe, and what to do when it is not a good one."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def examine(probe: Probe) -> Finding:
    """Asks, and never raises."""
    try:
        return Finding(probe.name, "ok", probe.ask())
    except Exception as error:
        status: Status = "failed" if probe.essential else "missing"
        reason = str(error) or type(error).__name__
        return Finding(probe.name, status, reason, probe.advice)


def _package() -> str:
    folder = Path(compiler.__file__).parents[1]
    try:
        found = version(folder.name)
    except PackageNotFoundError:
        if VERSION == UNKNOWN:
            raise UnsupportedError(f"not installed; the modules in {folder} are used") from None
        return f"{VERSION}, in {folder}"
    raise UnsupportedError(
        f"another distribution, {folder.name} {found}, is installed, and has modules of the same"
        f" names; those in {folder} are used"
    )


def _torch() -> str:
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return f"{torch.__version__}, {built_for}"


def _gpu() -> str:
    if not torch.cuda.is_available():
        raise UnsupportedError("torch finds no CUDA device")
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()}, {current_arch().name} ({major}.{minor})"


def _nvrtc() -> str:
    library = nvrtc_library()
    return f"{compiler.nvrtc_version()}, {library.why} ({library.path})"


def _cache() -> str:
    folder = compiler.cache_dir()
    cache = DiskCache(folder)
    entries = cache.entries()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    with tempfile.TemporaryFile(dir=existing):
        pass
    taken = f"{len(entries)} kernels of {size_text(sum(entry.size for entry in entries))}"
    limit = f"{size_text(cache.limit)} allowed"
    return f"{shown(folder)}, writable, {taken}, {limit}, {_free_gib(existing):.1f} GiB free"


def _free_gib(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 2**30


def _probe_compile() -> str:
    rung = last_rung_on(get_ladder(), current_arch())
    start = time.perf_counter()
    compiled = compile_config(rung.config, current_arch())
    seconds = time.perf_counter() - start
    if compiled.compile_seconds is None:
        how = f"from the cache in {seconds * 1e3:.0f} ms"
    else:
        how = f"compiled in {compiled.compile_seconds:.2f} s"
    registers = compiled.resources.registers
    return f"rung {rung.number} for {compiled.arch}: {how}, {registers} registers"


def _probe_launch() -> str:
    if not torch.cuda.is_available():
        raise UnsupportedError("no GPU to launch on")
    rung = last_rung_on(get_ladder(n_heads=2), current_arch())
    config = rung.config
    q, k, v, o = testing.generate_qkvo(1, 256, 2, config.d_head, config.dtype, "cuda")
    check = testing.check_output(forward(config, q, k, v, o), q, k, v)
    if not check.ok:
        raise UnsupportedError(f"rung {rung.number} gives wrong numbers: {check}")
    return f"rung {rung.number} agrees with the float64 oracle: {check}"


def _probe_emulator() -> str:
    rung = last_rung_on(get_ladder(n_heads=1), DEFAULT_ARCH)
    config = rung.config
    q, k, v = testing.generate_qkv(1, 128, 1, config.d_head, config.dtype)
    emulation = emulate(config, q, k, v)
    check = testing.check_output(emulation.output, q, k, v)
    if not check.ok or emulation.findings:
        raise UnsupportedError(f"rung {rung.number}: {check}; {len(emulation.findings)} findings")
    return f"rung {rung.number} in {emulation.seconds:.2f} s, no findings: {check}"


PROBES = (
    Probe(
        DISTRIBUTION,
        _package,
        "pip uninstall flash_attention, if that is installed; then, in a checkout of this package, "
        "pip install '.[all]'",
    ),
    Probe("python", platform.python_version, "install Python 3.10 or newer", essential=True),
    Probe("torch", _torch, "pip install torch", essential=True),
    Probe("cuda-bindings", lambda: version("cuda-bindings"), "pip install cuda-bindings", True),
    Probe("nvrtc", _nvrtc, "pip install nvidia-cuda-nvrtc", essential=True),
    Probe("driver", driver_version, "to run kernels, install NVIDIA's driver for CUDA 12 or newer"),
    Probe(
        "gpu",
        _gpu,
        "kernels can be compiled, inspected and emulated here; to launch them takes a GPU of sm_80 "
        "or newer and a CUDA build of torch",
    ),
    Probe(
        "cache",
        _cache,
        "set FLASH_ATTENTION_CACHE_DIR to a folder of yours that can be written; until then every "
        "process compiles anew",
    ),
    Probe("nvdisasm", lambda: str(sass.find_nvdisasm()), "pip install nvidia-cuda-nvdisasm"),
    Probe("compile", _probe_compile, "the message above names the cause", essential=True),
    Probe("emulator", _probe_emulator, "the message above names the cause", essential=True),
    Probe("launch", _probe_launch, "run this again on a machine with a GPU"),
)

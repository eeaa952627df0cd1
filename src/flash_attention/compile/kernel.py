# SPDX-License-Identifier: Apache-2.0
"""`compile_kernel`: from memory, from disk, or compiled once and kept."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakValueDictionary

from flash_attention.compile.cache import (
    CUBIN,
    LOG,
    PTX,
    SOURCE,
    DiskCache,
    cache_key,
    entry_name,
)
from flash_attention.compile.cache_folder import cache_dir, shown
from flash_attention.compile.includes import INCLUDE_DIR, include_closure
from flash_attention.compile.log import Resources, parse_log
from flash_attention.compile.notices import announce
from flash_attention.compile.nvrtc import (
    Compilation,
    RefusedSourceError,
    check_arch,
    compile_source,
    compiler_identity,
    nvrtc_version,
    options,
    settle_signals,
)
from flash_attention.errors import CompileError

NO_MACHINE_CODE = Resources(0, 0, 0, 0, ())
_ENTRY = re.compile(r"\.entry\s+(\w+)")
VIRTUAL = "compute_"  # an architecture of PTX, for which there is no machine code


@dataclass(frozen=True)
class CompiledKernel:
    """A translation unit and everything the compiler made of it."""

    name: str
    arch: str
    source: str
    ptx: str
    cubin: bytes
    log: str
    resources: Resources
    source_path: Path | None  # kernel.cu in the cache, None when kept in memory only
    compile_seconds: float | None  # None when it came from the disk cache

    @property
    def entry(self) -> str:
        """The name of the kernel in PTX, in machine code and in a profile."""
        return entry_of(self.ptx)


def entry_of(ptx: str) -> str:
    """The name of the first kernel of a translation unit."""
    found = _ENTRY.search(ptx)
    if found is None:
        raise CompileError(
            'the translation unit has no kernel; it must define one as extern "C" __global__'
        )
    return found[1]


def compile_kernel(
    source: str, *, arch: str, name: str, include_dir: Path = INCLUDE_DIR
) -> CompiledKernel:
    """The kernel of `source` for `arch`, compiled if no one did yet; `name` is for people."""
    check_arch(arch)
    request = _request(source, arch, name, include_dir)
    return _memory.get(request.folder, lambda: _load_or_compile(request))


def compile_to_ptx(
    source: str, *, arch: str, name: str, include_dir: Path = INCLUDE_DIR
) -> CompiledKernel:
    """The same without machine code, which takes half the time; all of it if it is there."""
    check_arch(arch)
    whole = _request(source, arch, name, include_dir)
    files = DiskCache(whole.cache_root).load(whole.entry, whole.key)
    if files is not None:
        known = _kernel(whole, files, folder=whole.folder, compile_seconds=None)
        return _memory.get(whole.folder, lambda: known)
    virtual = _request(source, arch.replace("sm_", VIRTUAL), name, include_dir)
    return _memory.get(virtual.folder, lambda: _load_or_compile(virtual))


def _request(source: str, arch: str, name: str, include_dir: Path) -> _Request:
    headers = include_closure(source, include_dir)
    key = cache_key(source, headers, options=options(arch), compiler=compiler_identity(), arch=arch)
    return _Request(source, arch, name, include_dir, headers, key, cache_dir())


@dataclass(frozen=True)
class _Request:
    source: str
    arch: str
    name: str
    include_dir: Path
    headers: Mapping[str, str]
    key: str
    cache_root: Path

    @property
    def entry(self) -> str:
        return entry_name(self.name, self.key)

    @property
    def folder(self) -> Path:
        return self.cache_root / self.entry


class _Memory:
    """The kernels of this process; what is also on disk lives only as long as someone holds it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Path, threading.Lock] = {}
        self._on_disk: WeakValueDictionary[Path, CompiledKernel] = WeakValueDictionary()
        self._only_here: dict[Path, CompiledKernel] = {}
        os.register_at_fork(after_in_child=self._renew_locks)

    def _renew_locks(self) -> None:
        """Whoever held one of them when this process was forked is not in it."""
        self._guard = threading.Lock()
        self._locks = {}

    def get(self, folder: Path, make: Callable[[], CompiledKernel]) -> CompiledKernel:
        with self._guard:
            lock = self._locks.setdefault(folder, threading.Lock())
        with lock:
            with self._guard:
                kernel = self._on_disk.get(folder) or self._only_here.get(folder)
            if kernel is None:
                kernel = make()
                with self._guard:
                    kept = self._on_disk if kernel.source_path else self._only_here
                    kept[folder] = kernel
            return kernel


_memory = _Memory()


def _load_or_compile(request: _Request) -> CompiledKernel:
    cache = DiskCache(request.cache_root)
    files = cache.load(request.entry, request.key)
    if files is None:
        settle_signals()
        with cache.lock(request.entry):
            files = cache.load(request.entry, request.key)
            if files is None:
                return _compile_and_keep(request, cache)
    return _kernel(request, files, folder=request.folder, compile_seconds=None)


def _compile_and_keep(request: _Request, cache: DiskCache) -> CompiledKernel:
    compilation = _compile(request, cache)
    files = {
        SOURCE: request.source.encode(),
        CUBIN: compilation.cubin,
        PTX: compilation.ptx.encode(),
        LOG: compilation.log.encode(),
    }
    kernel = _kernel(request, files, folder=None, compile_seconds=compilation.seconds)
    folder = cache.store(request.entry, request.key, files)
    announce(
        f"compiled {request.name} for {request.arch} in {compilation.seconds:.2f} s, "
        f"kept in {shown(folder) if folder else 'memory'}"
    )
    return replace(kernel, source_path=folder / SOURCE) if folder else kernel


def _compile(request: _Request, cache: DiskCache) -> Compilation:
    try:
        return compile_source(
            request.source,
            source_name=str(request.folder / SOURCE),
            arguments=options(request.arch),
            headers=request.headers,
            include_dir=request.include_dir,
        )
    except RefusedSourceError as refusal:
        folder = cache.store_failure(request.entry, request.source.encode(), refusal.log.encode())
        raise CompileError(
            f"NVRTC {nvrtc_version()} cannot compile {request.name} for {request.arch}",
            source_path=folder / SOURCE if folder else None,
            log=refusal.log,
        ) from None


def _kernel(
    request: _Request,
    files: Mapping[str, bytes],
    *,
    folder: Path | None,
    compile_seconds: float | None,
) -> CompiledKernel:
    ptx, log = files[PTX].decode(), files[LOG].decode()
    virtual = request.arch.startswith(VIRTUAL)
    return CompiledKernel(
        name=request.name,
        arch=request.arch,
        source=request.source,
        ptx=ptx,
        cubin=files[CUBIN],
        log=log,
        resources=NO_MACHINE_CODE if virtual else parse_log(log, entry_of(ptx)),
        source_path=folder / SOURCE if folder else None,
        compile_seconds=compile_seconds,
    )

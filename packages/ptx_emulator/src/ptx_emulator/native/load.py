# SPDX-License-Identifier: Apache-2.0
"""Compile the C of this folder once a machine, and load it.

The library lies in a folder of the user's own among the temporary files. Where there is no
compiler, or anything else is unusual, nothing is loaded and NumPy does all of the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

FOLDER = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
OPTIONS = ("-O3", "-march=native", "-shared", "-fPIC", f"-DOBJECT_BYTES={object.__basicsize__}")
SECONDS = 60  # that a compiler may take

ARRAY, NUMBER = ctypes.py_object, ctypes.c_int64
PARTS = (ARRAY, NUMBER, NUMBER, NUMBER, ARRAY, ARRAY, ARRAY)  # an access, and who touched parts
LANES_AT = (ARRAY,) * 5  # frames of a launch, of lanes and of a site, addresses and a mask
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "offsets": (ARRAY, ARRAY, NUMBER, ARRAY, NUMBER, ARRAY, ARRAY),
    "wavefronts": (ARRAY, ARRAY, ARRAY, ARRAY, NUMBER, ARRAY),
    "sectors": (ARRAY, ARRAY, ARRAY, NUMBER, ARRAY),
    "read_shared": (*LANES_AT, NUMBER, ARRAY, ARRAY, ARRAY),
    "write_shared": (*LANES_AT, NUMBER, ARRAY, ARRAY, ARRAY, *(ARRAY,) * 4),
    "record_reads": (ARRAY, ARRAY, ARRAY, NUMBER, ARRAY, NUMBER),
    "read_matrices": (ARRAY, ARRAY, NUMBER, ARRAY),
    "widen_a": (ARRAY, NUMBER, NUMBER, ARRAY, ARRAY),
    "widen_b": (ARRAY, NUMBER, NUMBER, NUMBER, ARRAY, ARRAY),
    "widen_chunks": (ARRAY, ARRAY, ARRAY, NUMBER, NUMBER, ARRAY),
    "spread": (ARRAY, NUMBER, NUMBER, ARRAY),
    "write_chunks": (ARRAY, NUMBER, NUMBER, ARRAY, *(NUMBER,) * 5),
    "read_chunks": (*(ARRAY,) * 5, NUMBER, NUMBER),
    "has_subnormals": (ARRAY,),
    "fused_multiply_add": (ARRAY,) * 4,
    "larger_of_two": (ARRAY, ARRAY, ctypes.c_double, ARRAY),
    "load_global": (*LANES_AT, NUMBER, NUMBER, ARRAY, ARRAY, ARRAY),
    "store_global": (*LANES_AT, NUMBER, NUMBER, ARRAY, ARRAY, *(ARRAY,) * 4),
    "check_touches": (*PARTS, *(NUMBER,) * 4, *(ARRAY,) * 6),
    "record_stores": (*PARTS, *(ARRAY,) * 4),
}


class Native:
    """The functions of the library. Each returns a negative number where NumPy has to look."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, library: ctypes.PyDLL) -> None:
        for name, arguments in ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, NUMBER
            setattr(self, name, function)
        self.numbers = np.zeros(4, np.int64)  # that a function returns

    def of_a_launch(self) -> Native:
        """The same functions, with numbers that no other launch touches."""
        mine = Native.__new__(Native)
        mine.__dict__.update(self.__dict__)
        mine.numbers = np.zeros(4, np.int64)
        return mine


@lru_cache(maxsize=1)
def load_native() -> Native | None:
    """The compiled functions; None where there are none."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    try:
        library = ctypes.PyDLL(str(_compiled(compiler)))
        return Native(library) if _knows_arrays(library) else None
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None


def _compiled(compiler: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"flash_attention-emulator-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_owner(folder)
    sources = sorted(FOLDER.glob("*.c"))
    texts = [path.read_text() for path in (*sources, *sorted(FOLDER.glob("*.h")))]
    key = repr((texts, compiler, OPTIONS, _processor())).encode()
    library = folder / f"{hashlib.sha256(key).hexdigest()[:32]}.so"
    if not library.exists():
        unfinished = library.with_suffix(f".{os.getpid()}")
        command = (compiler, *OPTIONS, *map(str, sources), "-lm", "-o", str(unfinished))
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        unfinished.replace(library)
    return library


def _processor() -> str:
    """What the processor can do, as another one may not run what was compiled for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = (line for line in lines if line.lower().startswith(("flags", "features")))
    return platform.machine() + next(flags, platform.processor())


def _check_owner(folder: Path) -> None:
    """What others can change is not loaded."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user alone")


def _knows_arrays(library: ctypes.PyDLL) -> bool:
    """Whether the library finds its way in an array as this NumPy lays it out."""
    library.remember_none.argtypes = (ARRAY,)
    library.remember_none.restype = None
    library.remember_none(None)
    library.layout.argtypes = (ARRAY, ctypes.POINTER(ctypes.c_long))
    for array in (np.zeros(3, np.int32), np.zeros((2, 6))[:, ::2]):
        found = (ctypes.c_long * 5)()
        library.layout(array, found)
        plain = int(array.flags.c_contiguous)
        wanted = [array.ctypes.data, array.ndim, array.shape[0], array.strides[0], plain]
        if list(found) != wanted:
            return False
    return True

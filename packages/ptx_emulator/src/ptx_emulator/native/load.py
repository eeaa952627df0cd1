# SPDX-License-Identifier: Apache-2.0
"""Load the C of this folder. Where there is no compiler, or anything else is unusual, nothing is
loaded and NumPy does all of the work."""

from __future__ import annotations

import ctypes
import subprocess
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ptx_emulator.native.build import built_library

ARRAY, NUMBER = ctypes.py_object, ctypes.c_int64
PARTS = (ARRAY, NUMBER, NUMBER, NUMBER, ARRAY, ARRAY, ARRAY)  # an access, and who touched parts
ONE_LANE = (ARRAY, ARRAY, *(NUMBER,) * 6, ARRAY, ARRAY, *(NUMBER,) * 3)
LANES_AT = (ARRAY,) * 5  # frames of a launch, of lanes and of a site, addresses and a mask
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "find_arrays": (ARRAY, NUMBER),
    "offsets": (ARRAY, ARRAY, NUMBER, ARRAY, NUMBER, ARRAY, ARRAY),
    "wavefronts": (ARRAY, ARRAY, ARRAY, ARRAY, NUMBER, ARRAY),
    "sectors": (ARRAY, ARRAY, ARRAY, NUMBER, ARRAY),
    "read_shared": (*LANES_AT, NUMBER, ARRAY, ARRAY, ARRAY),
    "write_shared": (*LANES_AT, NUMBER, ARRAY, ARRAY, ARRAY, *(ARRAY,) * 4),
    "record_reads": (ARRAY, ARRAY, ARRAY, NUMBER, ARRAY, NUMBER),
    "read_matrices": (ARRAY, ARRAY, NUMBER, ARRAY),
    "widen_a": (ARRAY, NUMBER, NUMBER, ARRAY, ARRAY, ARRAY),
    "widen_b": (ARRAY, NUMBER, NUMBER, NUMBER, ARRAY, ARRAY),
    "widen_chunks": (*(ARRAY,) * 4, NUMBER, NUMBER, NUMBER, ARRAY),
    "spread": (ARRAY, NUMBER, NUMBER, ARRAY, ARRAY),
    "collect": (ARRAY, NUMBER, NUMBER, ARRAY, ARRAY),
    "write_chunks": (ARRAY, NUMBER, NUMBER, ARRAY, *(NUMBER,) * 5),
    "read_chunks": (*(ARRAY,) * 5, NUMBER, NUMBER),
    "read_operands": (ARRAY,) * 7,
    "read_in_bulk": (ARRAY, ARRAY, *(NUMBER,) * 6),
    "take_over": (*(ARRAY,) * 4, NUMBER, NUMBER),
    "let_see": (*(ARRAY,) * 3, *(NUMBER,) * 5),
    "start_epochs": (ARRAY, ARRAY, NUMBER, NUMBER),
    "has_subnormals": (ARRAY,),
    "fused_multiply_add": (ARRAY,) * 4,
    "larger_of_two": (ARRAY, ARRAY, ctypes.c_double, ARRAY),
    "pack_halves": (ARRAY, ARRAY, NUMBER, ARRAY),
    "load_global": (*LANES_AT, NUMBER, NUMBER, ARRAY, ARRAY, ARRAY),
    "store_global": (*LANES_AT, NUMBER, NUMBER, ARRAY, ARRAY, *(ARRAY,) * 4),
    "check_touches": (*PARTS, *(NUMBER,) * 4, *(ARRAY,) * 6),
    "record_stores": (*PARTS, *(ARRAY,) * 4),
    "store_by_one": (ARRAY, *(NUMBER,) * 3, *ONE_LANE),
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
    try:
        library = ctypes.PyDLL(str(built_library()))
        return Native(library) if _knows_arrays(library) else None
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None


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

# SPDX-License-Identifier: Apache-2.0
"""The headers of a text whose host code is left out: those of the user without theirs, and nothing
in the place of those that only a host has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ptx_emulator.user_kernel.host_code import without_host_code
from ptx_emulator.user_kernel.host_headers import HOST_HEADERS

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)


def device_headers(
    source: str, folder: Path, include: Sequence[Path], toolkit: Sequence[Path]
) -> Mapping[str, str]:
    """Texts by the names that the source, and what it includes, has for them.

    Headers of the toolkit are left to the compiler.
    """
    found: dict[str, str] = {}
    waiting = list(_included(source, folder, include))
    while waiting:
        name, path = waiting.pop()
        if name in found or name in HOST_HEADERS:
            continue
        if path is not None:
            text = path.read_text(errors="replace")
            found[name] = without_host_code(text)
            waiting += _included(text, path.parent, include)
        elif not any((place / name).is_file() for place in toolkit):
            found[name] = _standard(name, toolkit)
    return found


def _included(
    text: str, folder: Path, include: Sequence[Path]
) -> Iterator[tuple[str, Path | None]]:
    """The names that a text includes, with the files of the user that they mean."""
    for _, name in _INCLUDE.findall(text):
        places = (place / name for place in (folder, *include))
        yield name, next(filter(Path.is_file, places), None)


def _standard(name: str, toolkit: Sequence[Path]) -> str:
    """The header of the C++ library as the toolkit has it for device code, or nothing."""
    if any((place / "cuda" / "std" / name).is_file() for place in toolkit):
        lines = ("#pragma once", f"#include <cuda/std/{name}>")
        return "\n".join((*lines, "namespace std { using namespace cuda::std; }", ""))
    return "#pragma once\n"

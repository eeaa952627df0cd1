# SPDX-License-Identifier: Apache-2.0
"""The headers of a text whose host code is left out: those of the user without theirs, and nothing
in the place of those that only a host has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ptx_emulator.user_kernel.host_code import without_host_code
from ptx_emulator.user_kernel.host_headers import HOST_HEADERS, TYPES_OF
from ptx_emulator.user_kernel.nvcc import line_one

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)


def device_headers(
    source: str, folders: Sequence[Path], toolkit: Sequence[Path], *, own_too: bool
) -> Mapping[str, str]:
    """Texts by the names that the source, and what it includes, has for them.

    Headers of the toolkit are left to the compiler, and so are those of the user's own (in quotes)
    that are in no folder, unless `own_too`.
    """
    found: dict[str, str] = {}
    waiting = list(_included(source, folders))
    while waiting:
        quote, name, path = waiting.pop()
        if name in found or name in HOST_HEADERS:
            continue
        if path is not None:
            text = path.read_text(errors="replace")
            found[name] = line_one(str(path)) + without_host_code(text)
            waiting += _included(text, (path.parent, *folders))
        elif (own_too or quote == "<") and not _is_in(toolkit, name):
            found[name] = _standard(name, toolkit)
    return found


def _included(text: str, folders: Sequence[Path]) -> Iterator[tuple[str, str, Path | None]]:
    """How a text includes what, and the file of the user that is meant."""
    for quote, name in _INCLUDE.findall(text):
        places = (place / name for place in folders)
        yield quote, name, next(filter(Path.is_file, places), None)


def _is_in(folders: Sequence[Path], name: str) -> bool:
    return any((folder / name).is_file() for folder in folders)


def _standard(name: str, toolkit: Sequence[Path]) -> str:
    """The header of the C++ library as the toolkit has it for device code, the types that come
    with a library of the host, or nothing."""
    if _is_in(toolkit, f"cuda/std/{name}"):
        lines = ("#pragma once", f"#include <cuda/std/{name}>")
        return "\n".join((*lines, "namespace std { using namespace cuda::std; }", ""))
    types = (header for header in TYPES_OF.get(name, ()) if _is_in(toolkit, header))
    return "\n".join(("#pragma once", *(f"#include <{header}>" for header in types), ""))

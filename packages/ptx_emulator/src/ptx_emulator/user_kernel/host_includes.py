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

_INCLUDE = re.compile(
    r'^(?P<before>[ \t]*#[ \t]*include[ \t]*)(?P<quote>[<"])(?P<name>[^>"\n]+)[>"]', re.MULTILINE
)


def device_headers(
    source: str, folders: Sequence[Path], toolkit: Sequence[Path], *, own_too: bool
) -> tuple[str, Mapping[str, str]]:
    """The source, which includes files of the user by their paths, and texts by the names that it,
    and what it includes, has for them: several files may have one name.

    Headers of the toolkit are left to the compiler, and so are those of the user's own (in quotes)
    that are in no folder, unless `own_too`.
    """
    found: dict[str, str] = {}
    files: dict[str, Path] = {}
    by_path = _by_path(source, folders, files)
    waiting = list(_included(by_path))
    while waiting:
        quote, name = waiting.pop()
        if name in found or name in HOST_HEADERS:
            continue
        if path := files.get(name):
            text = without_host_code(path.read_text(errors="replace"))
            text = _by_path(text, (path.parent, *folders), files)
            found[name] = line_one(str(path)) + text
            waiting += _included(text)
        elif (own_too or quote == "<") and not _is_in(toolkit, name):
            found[name] = _standard(name, toolkit)
    return by_path, found


def _included(text: str) -> Iterator[tuple[str, str]]:
    """How a text includes what."""
    for match in _INCLUDE.finditer(text):
        yield match["quote"], match["name"]


def _by_path(text: str, folders: Sequence[Path], files: dict[str, Path]) -> str:
    """The text with the paths of the files of the user that it includes, which `files` gets."""

    def path_of(match: re.Match[str]) -> str:
        places = (folder / match["name"] for folder in folders)
        path = next(filter(Path.is_file, places), None)
        if path is None or match["name"] in HOST_HEADERS:
            return match[0]
        whole = str(path.resolve())
        files.setdefault(whole, path)
        return f'{match["before"]}"{whole}"'

    return _INCLUDE.sub(path_of, text)


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

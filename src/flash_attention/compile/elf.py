# SPDX-License-Identifier: Apache-2.0
"""The few facts we read from ELF64 files: a kernel's machine code, a library's build id."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from flash_attention.errors import CompileError

ENTRY = "flash_forward_kernel"  # what the extern "C" entry of a forward kernel begins with

_MAGIC = b"\x7fELF\x02\x01"  # 64 bit, little endian
_SECTION_TABLE = struct.Struct("<40xQ10xHHH")  # offset, entry size, count, index of the names
_SECTION = struct.Struct("<II16xQQ")  # name, type, offset, size
_NOTE_HEADER = struct.Struct("<III")  # name size, description size, type
_TEXT = ".text."
_NO_BITS = 8  # SHT_NOBITS: the section takes no room in the file


def text_section(cubin: bytes, entry: str | None = None) -> bytes:
    """The machine code of kernel `entry`, which need not be named where it is the only one."""
    try:
        sections = _sections(cubin)
    except (struct.error, ValueError) as error:
        raise CompileError(f"these {len(cubin)} bytes are not a whole cubin: {error}") from None
    codes = {n.removeprefix(_TEXT): code for n, code in sections.items() if n.startswith(_TEXT)}
    if entry is None and len(codes) == 1:
        (entry,) = codes
    if entry is None or entry not in codes:
        raise CompileError(
            f"the cubin has no kernel {entry!r}; it has {', '.join(codes) or 'none'}"
        )
    return codes[entry]


def build_id(library: Path) -> str | None:
    """The linker's identity of a shared library, None where it carries none."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        note = _sections(data, only=".note.gnu.build-id").get(".note.gnu.build-id")
    if note is None:
        return None
    name_size, description_size, _ = _NOTE_HEADER.unpack_from(note)
    start = _NOTE_HEADER.size + -(-name_size // 4) * 4
    return note[start : start + description_size].hex()


def _sections(data: bytes | mmap.mmap, only: str | None = None) -> dict[str, bytes]:
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("no ELF64 header")
    table, entry_size, count, names_index = _SECTION_TABLE.unpack_from(data)
    headers = [_SECTION.unpack_from(data, table + i * entry_size) for i in range(count)]
    if names_index >= count:
        raise ValueError("no section names")
    names = _slice(data, *headers[names_index][2:])
    sections = {}
    for name_offset, kind, offset, size in headers:
        name = names[name_offset : names.find(b"\0", name_offset)].decode("ascii", "replace")
        if kind != _NO_BITS and (only is None or name == only):
            sections[name] = _slice(data, offset, size)
    return sections


def _slice(data: bytes | mmap.mmap, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise ValueError(f"a section ends at byte {offset + size}")
    return data[offset : offset + size]

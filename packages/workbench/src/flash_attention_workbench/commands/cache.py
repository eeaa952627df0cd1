# SPDX-License-Identifier: Apache-2.0
"""The commands below `flash-attention cache`: what is kept on disk, and is it whole."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from flash_attention.compile.cache import DiskCache, Entry
from flash_attention.compile.cache_folder import LIMIT_VARIABLE, cache_dir, shown, size_text
from flash_attention.errors import UnsupportedError
from flash_attention_workbench.commands.console import output, report_table

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]


def list_entries(as_json: JsonOption = False) -> None:
    """Every kernel, the one used last first."""
    entries = _entries(DiskCache(cache_dir()))
    if as_json:
        typer.echo(json.dumps([vars(entry) for entry in entries], indent=1))
        return
    table = report_table("last used")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("kernel", overflow="fold")
    for entry in entries:
        used = datetime.fromtimestamp(entry.last_used).strftime("%Y-%m-%d %H:%M")
        table.add_row(used, size_text(entry.size), entry.name)
    output.print(table)


def size(as_json: JsonOption = False) -> None:
    """How many kernels there are, what they take, and what they may take."""
    cache = DiskCache(cache_dir())
    entries = _entries(cache)
    taken = sum(entry.size for entry in entries)
    if as_json:
        facts = {"folder": shown(cache.root), "kernels": len(entries), "bytes": taken}
        typer.echo(json.dumps(facts | {"limit": cache.limit}, indent=1))
        return
    limit = f"of {size_text(cache.limit)} that {LIMIT_VARIABLE} allows"
    _say(f"{len(entries)} kernels in {shown(cache.root)} take {size_text(taken)}, {limit}")


def clear() -> None:
    """Remove every kernel; the tuner's timings, which lie in the same folder, stay."""
    cache = DiskCache(cache_dir())
    entries = _entries(cache)
    if entries:
        cache.discard(entries)
    left = _entries(cache)
    _say(f"removed {len(entries) - len(left)} kernels from {shown(cache.root)}")
    if left:
        raise UnsupportedError(f"{len(left)} kernels cannot be removed from {shown(cache.root)}")


def verify() -> None:
    """Hold every kernel to its digests and its owner; exit code 1 when one cannot be loaded."""
    cache = DiskCache(cache_dir())
    entries = _entries(cache)
    faults = {entry.name: fault for entry in entries if (fault := cache.fault(entry.name))}
    for name, fault in faults.items():
        _say(f"{name}: {fault}")
    whole = len(entries) - len(faults)
    _say(f"{whole} of {len(entries)} kernels in {shown(cache.root)} are whole")
    if faults:
        _say("the others are compiled again when they are asked for, and replaced")
        raise typer.Exit(1)


def _entries(cache: DiskCache) -> list[Entry]:
    try:
        return cache.entries()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnsupportedError(
            f"cannot read the cache folder {shown(cache.root)}: {reason}"
        ) from error


def _say(sentence: str) -> None:
    output.print(sentence, markup=False, highlight=False, soft_wrap=True)

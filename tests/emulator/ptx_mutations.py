# SPDX-License-Identifier: Apache-2.0
"""Mutates lines of the PTX of five kernels by rule, and writes the table of what was found:

python -m tests.emulator.ptx_mutations run                          # all of them, in minutes
python -m tests.emulator.ptx_mutations run 2 5                      # those of two of the kernels
python -m tests.emulator.ptx_mutations docs/emulator_mutations.md   # the table, from these runs
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.render.blocks import replace_block, table, wrap
from flash_attention.compile.nvrtc import nvrtc_version
from flash_attention.files import write_record
from flash_attention.launch.emulation import Settings
from ptx_emulator import SCHEDULES, load_program
from tests.emulator.ptx_kernels import KERNELS, Found, Kernel
from tests.emulator.ptx_reasons import REASONS, Reason
from tests.emulator.ptx_sites import Site, spread

RESULTS = Path(__file__).resolve().parents[2] / "results" / "emulator_mutations.json"
A_KERNEL = 20  # mutations
SEEDS = range(1, 5)  # of more random orders, for mutations that nothing else shows
HEADER = ("PTX line", "instruction", "mistake", "where", "found", "why nothing is found")


def chosen(kernel: Kernel) -> list[Site]:
    return spread(kernel.sites, A_KERNEL)


def listed(kernel: Kernel, site: Site) -> dict[str, Any]:
    """What names a mutation: all that a run of it does not tell. Its place is that among the sites
    of its rule, which stays when lines move."""
    return {
        "line": site.number,
        "place": place(kernel, site),
        "instruction": " ".join(site.text.split()),
        "mistake": site.rule.mistake,
        "where": _header(kernel, site),
    }


def place(kernel: Kernel, site: Site) -> int:
    return [each for each in kernel.sites if each.rule is site.rule].index(site)


def _header(kernel: Kernel, site: Site) -> str:
    """The header that the instruction comes from, or that calls the wrapper of the instruction."""
    instructions = load_program(kernel.ptx).kernel.instructions
    source = next(i.source for i in instructions if i.ptx_line == site.number) or ""
    headers: list[str] = re.findall(r"include/fa/([\w/]+\.cuh)", source)
    return next((header for header in headers if not header.startswith("ptx/")), headers[-1])


def kinds(found: Iterable[Found]) -> list[str]:
    return sorted({each.kind for each in found})


def outcome(kernel: Kernel, site: Site) -> dict[str, list[str]]:
    """The kinds of findings of a mutation under every schedule of the warps. Where there are none
    it runs in more random orders."""
    ptx, seen = site.plant(kernel.ptx), {}
    for schedule in SCHEDULES:
        seen[schedule] = kinds(kernel.run(ptx, Settings(schedule), site.number))
    for seed in SEEDS:
        if any(seen.values()):
            break
        settings = Settings("random", seed)
        seen[f"random {seed}"] = kinds(kernel.run(ptx, settings, site.number))
    return seen


def beside(kernel: Kernel, named: tuple[str, int]) -> Site:
    mistake, number = named
    return [site for site in kernel.sites if site.rule.mistake == mistake][number]


def proof(kernel: Kernel, site: Site, reason: Reason) -> list[str]:
    """What a mutation adds to the findings of the one that takes away what makes it harmless."""
    if reason.beside is None:
        return []
    alone = beside(kernel, reason.beside).plant(kernel.ptx)
    added: set[Found] = set()
    for schedule in SCHEDULES:
        both = kernel.run(site.plant(alone), Settings(schedule), site.number)
        added |= both - kernel.run(alone, Settings(schedule), site.number)
    return kinds(added)


def run_kernel(kernel: Kernel) -> dict[str, Any]:
    rows = []
    for site in chosen(kernel):
        row = listed(kernel, site) | {"found": outcome(kernel, site)}
        reason = REASONS.get((kernel.name, row["mistake"], row["place"]))
        if reason is not None and reason.beside is not None:
            row["beside"] = beside(kernel, reason.beside).number
            row["both"] = proof(kernel, site, reason)
        print(kernel.name, *row.values(), flush=True)
        rows.append(row)
    return {"name": kernel.name, "sites": len(kernel.sites), "mutations": rows}


def run(numbers: Sequence[str]) -> None:
    """Run the mutations of some kernels, by their numbers from 1, or of all, and keep the rest."""
    before = json.loads(RESULTS.read_text())["kernels"] if RESULTS.exists() else []
    kernels = {kernel["name"]: kernel for kernel in before}
    for kernel in [KERNELS[int(number) - 1] for number in numbers] or KERNELS:
        kernels[kernel.name] = run_kernel(kernel)
        ordered = [kernels[each.name] for each in KERNELS if each.name in kernels]
        results = {"nvrtc": nvrtc_version(), "kernels": ordered}
        write_record(RESULTS, results)


def found(row: dict[str, Any]) -> str:
    """The kinds of findings, and the schedules that show none of them."""
    by_schedule = row["found"]
    every = sorted({kind for seen in by_schedule.values() for kind in seen})
    without = [schedule for schedule, seen in by_schedule.items() if not seen]
    if not every:
        return "nothing"
    return ", ".join(every) + (f" (not in {', '.join(without)})" if without else "")


def why(name: str, row: dict[str, Any]) -> str:
    """Why a mutation is harmless, and what shows it."""
    reason = REASONS.get((name, row["mistake"], row["place"]))
    if reason is None or found(row) != "nothing":
        return ""
    if reason.beside is None:
        return reason.text
    added = ", ".join(row["both"])
    return f"{reason.text} With line {row['beside']} changed too ({reason.beside[0]}): {added}."


def _caught(rows: Sequence[dict[str, Any]]) -> int:
    return sum(found(row) != "nothing" for row in rows)


def block(results: dict[str, Any]) -> str:
    """The tables of all kernels."""
    rows = [row for kernel in results["kernels"] for row in kernel["mutations"]]
    lines = [f"{_caught(rows)} of {len(rows)} mutations are found.", ""]
    for kernel in results["kernels"]:
        cells = [
            [
                str(row["line"]),
                f"`{row['instruction']}`",
                row["mistake"],
                f"`{row['where']}`",
                found(row),
                why(kernel["name"], row),
            ]
            for row in kernel["mutations"]
        ]
        title = f"**{kernel['name']}**: {_caught(kernel['mutations'])} of {len(cells)} are found."
        title += f" The kernel has {kernel['sites']} sites."
        lines += [title, "", *table(HEADER, cells, left=len(HEADER)), ""]
    return wrap("ptx-mutations", lines[:-1])


def main(argument: str, *numbers: str) -> None:
    if argument == "run":
        run(numbers)
        return
    document, results = Path(argument), json.loads(RESULTS.read_text())
    document.write_text(replace_block(document.read_text(), "ptx-mutations", block(results)))


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Every conformance case on the GPU beside the emulator, as a results file:

PYTHONPATH=. python benchmarks/conformance.py RESULTS
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from flash_attention.files import write_record
from flash_attention.launch.device import current_arch
from flash_attention_workbench.bench.environment import describe
from tests.emulator.conformance import bulk_copies, tensor_copies, wgmma
from tests.emulator.conformance.device import launched
from tests.emulator.conformance.emulated import emulated
from tests.emulator.conformance.everything import CASES
from tests.emulator.conformance.hopper_case import HopperCase, emulated_hopper, same_bits
from tests.emulator.conformance.hopper_device import launched_hopper
from tests.emulator.conformance.verdict import judge

HOPPER = (9, 0)


def instructions() -> list[dict[str, Any]]:
    """One row an instruction: share of equal bits, worst distance in ulp, and the verdict."""
    here = current_arch().name
    rows = []
    for case in CASES.values():
        if case.arch != "sm_80" and case.arch.rstrip("a") != here:
            continue
        arch = here if case.arch == "sm_80" else case.arch
        on_gpu, (on_emulator, _) = launched(case, arch), emulated(case, arch)
        against_numpy = judge(case, on_gpu, case.expected)
        for verdict, expected in zip(
            judge(case, on_gpu, on_emulator, slack=1), against_numpy, strict=True
        ):
            row = asdict(verdict)
            row["ok"] = verdict.ok and expected.ok
            rows.append(row)
    return rows


def hopper(cases: Sequence[HopperCase]) -> list[dict[str, Any]]:
    """One row a case of wgmma or TMA; both are compared bit for bit."""
    if torch.cuda.get_device_capability() != HOPPER:
        return []
    rows = []
    for case in cases:
        on_gpu, (on_emulator, _) = launched_hopper(case), emulated_hopper(case)
        ok = all(
            same_bits(on_gpu[name], on_emulator[name]) and same_bits(on_gpu[name], wanted)
            for name, wanted in case.expected.items()
        )
        rows.append({"case": case.name.split()[0], "instruction": case.name, "ulp": 0, "ok": ok})
    return rows


def main(arguments: Sequence[str]) -> int:
    copies = [*tensor_copies.cases(), *bulk_copies.cases()]
    rows = [*instructions(), *hopper(wgmma.cases()), *hopper(copies)]
    wrong = [row for row in rows if not row["ok"]]
    for row in wrong:
        print(f"{row['instruction']}: {row.get('first_difference') or 'differs'}")
    print(f"{len(rows) - len(wrong)} of {len(rows)} agree")
    record = {**describe(), "rows": rows}
    write_record(Path(arguments[0]), record)
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

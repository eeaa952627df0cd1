# SPDX-License-Identifier: Apache-2.0
"""The machine code of a cubin as instructions, counted by opcode and by what they do."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.extras import how_to_install

OTHER = "other"
PRINT_CODE = ("--print-code", "--no-dataflow")  # which analysis adds notes on spills

_CLASSES: dict[str, str] = {
    "tensor core": "HMMA IMMA DMMA QMMA OMMA HGMMA IGMMA QGMMA UTCHMMA UTCQMMA UTCIMMA UTCOMMA",
    "shared read": "LDS LDSM",
    "shared write": "STS STSM",
    "async copy": "LDGSTS UTMALDG UTMASTG UTMAREDG UTMAPF UBLKCP UBLKRED",
    "global": "LDG STG LD ST RED REDG ATOM ATOMG",
    "local memory": "LDL STL",
    "special function": "MUFU",
    "fp32": "FFMA FMUL FADD FMNMX FMNMX3 FSETP FSEL FSET FCHK FFMA2 FMUL2 FADD2",
    "fp16": "HFMA2 HMUL2 HADD2 HMNMX2 HSETP2 HSET2",
    "integer": (
        "IADD IADD3 IMAD LOP LOP3 SHF SHL SHR LEA ISETP IMNMX VIADD VIMNMX VIADDMNMX IABS POPC "
        "FLO BREV BMSK SGXT PLOP3 PSETP"
    ),
    "convert": "F2FP F2F F2I F2IP I2F I2FP I2I FRND",
    "move": "MOV IMAD.MOV PRMT SEL SHFL S2R S2UR CS2R R2UR LDC LDCU P2R R2P MOVM VOTE",
    "control": (
        "BRA BAR EXIT BSSY BSYNC BREAK BRX JMP CALL RET WARPSYNC DEPBAR LDGDEPBAR MEMBAR FENCE "
        "ERRBAR CCTL YIELD NANOSLEEP BPT KILL ELECT SYNCS WARPGROUP USETMAXREG UTMACMDFLUSH "
        "ARRIVES ACQBULK PREEXIT CGAERRBAR UCGABAR_ARV UCGABAR_WAIT"
    ),
}
_CLASS_OF = {opcode: name for name, opcodes in _CLASSES.items() for opcode in opcodes.split()}

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)")
_LABEL = re.compile(r"^(\.L\w+):")
_BRANCH = re.compile(r"\((\.L\w+)\)")
_INSTRUCTION = re.compile(
    r"/\*(?P<address>[0-9a-fA-F]{4,})\*/\s+"
    r"(?:@(?P<predicate>!?U?P(?:\d+|T))\s+)?"
    r"(?P<opcode>[A-Z][A-Z0-9_.a-z]*)"
    r"(?:\s+(?P<operands>[^;]*?))?\s*;"
)


class InspectorMissing(UnsupportedError):  # noqa: N818
    """nvdisasm is not installed."""


@dataclass(frozen=True)
class Instruction:
    """One machine instruction, as nvdisasm spells it."""

    address: int
    opcode: str  # with its modifiers: "HMMA.16816.F32.BF16"
    operands: str
    predicate: str = ""  # "P0", "!P0", "UP1"
    target: int | None = None  # the address that a branch goes to

    @property
    def name(self) -> str:
        """The opcode without modifiers; IMAD.MOV, which only copies, keeps its one."""
        if self.opcode.startswith("IMAD.MOV"):
            return "IMAD.MOV"
        return self.opcode.partition(".")[0]


def disassemble(cubin: bytes, entry: str | None = None) -> list[Instruction]:
    """The instructions of kernel `entry`, without the padding after its end; of the first kernel
    if none is named."""
    inspector = find_nvdisasm()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        result = subprocess.run(
            [inspector, *PRINT_CODE, file.name], capture_output=True, text=True, check=False
        )
    if result.returncode != 0:
        raise UnsupportedError(
            f"{inspector} cannot read this cubin of {len(cubin)} bytes: {result.stderr.strip()}"
        )
    return parse_disassembly(result.stdout, entry)


def parse_disassembly(text: str, entry: str | None = None) -> list[Instruction]:
    """The instructions of kernel `entry`, or of the first one, in what nvdisasm printed."""
    instructions: list[Instruction] = []
    inside = False
    pending: list[str] = []  # labels of the next instruction
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if section := _SECTION.match(line):
            entry = entry or section.group(1)
            inside = section.group(1) == entry
        elif inside and (label := _LABEL.match(line)):
            pending.append(label.group(1))
        elif inside and (found := _INSTRUCTION.search(line)):
            instructions.append(
                Instruction(
                    address=int(found["address"], 16),
                    opcode=found["opcode"],
                    operands=found["operands"] or "",
                    predicate=found["predicate"] or "",
                )
            )
            labels |= dict.fromkeys(pending, instructions[-1].address)
            pending.clear()
    if not instructions:
        raise UnsupportedError(f"the disassembly holds no instruction of kernel {entry!r}")
    while instructions[-1].opcode == "NOP":
        instructions.pop()
    return [_with_target(one, labels) for one in instructions]


def _with_target(one: Instruction, labels: Mapping[str, int]) -> Instruction:
    if one.name not in ("BRA", "CALL") or (label := _BRANCH.search(one.operands)) is None:
        return one
    return replace(one, target=labels.get(label.group(1)))


def opcode_counts(instructions: Iterable[Instruction]) -> Counter[str]:
    """How often each opcode occurs, modifiers aside."""
    return Counter(instruction.name for instruction in instructions)


def instruction_mix(counts: Mapping[str, int]) -> dict[str, int]:
    """Instructions by what they do; every class is there, and every instruction is in one."""
    mix = dict.fromkeys([*_CLASSES, OTHER], 0)
    for opcode, count in counts.items():
        mix[_class_of(opcode)] += count
    return mix


def find_nvdisasm() -> str:
    """The nvdisasm program, from its wheel or from PATH."""
    namespace = importlib.util.find_spec("nvidia")
    folders = namespace.submodule_search_locations if namespace else None
    for folder in folders or ():
        for program in sorted(Path(folder).glob("*/bin/nvdisasm"), reverse=True):
            return str(program)
    on_path = shutil.which("nvdisasm")
    if on_path is None:
        raise InspectorMissing(
            "machine code is read with nvdisasm, which is neither installed as a wheel nor on "
            f"PATH; {how_to_install('inspect')}"
        )
    return on_path


def _class_of(opcode: str) -> str:
    uniform = opcode.removeprefix("U")  # UIADD3 does for a whole warp what IADD3 does for a lane
    return _CLASS_OF.get(opcode) or _CLASS_OF.get(uniform, OTHER)

# SPDX-License-Identifier: Apache-2.0
"""Programs beside their PTX: the same runs, and nothing taken that is damaged, old or foreign."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flash_attention import DType
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.launch import programs
from flash_attention.launch.emulate import emulate
from flash_attention.launch.emulation import Emulation, compiled_unit
from flash_attention.launch.programs import CODE, PROGRAM, program_of
from flash_attention.reference.judge import check_output, generate_qkv
from ptx_emulator import load_program
from ptx_emulator.program import kept
from ptx_emulator.program.kept import from_bytes, to_bytes
from ptx_emulator.ptx.deferred import Rest

CONFIG = FlashForwardKernelConfig(
    DType.FP16, 64, 64, 32, 4, False, False, False, 0, 0, 0, False, False
)


def forget() -> None:
    """What another process does not know."""
    for known in (compiled_unit, program_of, load_program):
        known.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own for every test."""
    monkeypatch.setenv("FLASH_ATTENTION_CACHE_DIR", str(tmp_path))
    forget()
    return tmp_path


def emulated() -> Emulation:
    q, k, v = generate_qkv(1, 64, 1, 64, DType.FP16)
    result = emulate(CONFIG, q, k, v)
    assert check_output(result.output, q, k, v).ok
    return result


def the_file(folder: Path, name: str = PROGRAM) -> Path:
    (path,) = folder.glob(f"*/{name}")
    return path


def refuse(*_: object) -> object:
    raise AssertionError("PTX was read or translated")


def test_the_second_process_translates_no_ptx_and_runs_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = emulated()
    assert the_file(folder).stat().st_mode & 0o777 == 0o644
    forget()
    monkeypatch.setattr(programs, "load_program", refuse)
    monkeypatch.setattr("ptx_emulator.program.program.compile", refuse, raising=False)
    with monkeypatch.context() as unread:
        unread.setattr(Rest, "of", refuse)  # the instructions stay bytes
        second = emulated()
    assert torch.equal(first.output, second.output)
    assert first.findings == second.findings == ()
    assert first.counters.to_dict() == second.counters.to_dict()


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "spoil",
    [
        damaged,
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o666),
        lambda path: path.write_bytes(to_bytes(load_program(OTHER), OTHER)),
    ],
    ids=["damaged", "empty", "writable by all", "another kernel"],
)
def test_what_cannot_be_trusted_is_made_again(folder: Path, spoil: object) -> None:
    emulated()
    path = the_file(folder)
    whole = path.read_bytes()
    assert callable(spoil)
    spoil(path)
    forget()
    emulated()
    assert path.read_bytes()[:32] == whole[:32]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("spoil", [damaged, lambda path: path.unlink()], ids=["damaged", "gone"])
def test_code_that_is_not_this_program_s_is_made_again(folder: Path, spoil: object) -> None:
    first = emulated()
    code = the_file(folder, CODE)
    assert callable(spoil)
    spoil(code)
    forget()
    assert torch.equal(first.output, emulated().output)
    whole = code.read_bytes()
    the_file(folder).unlink()  # the next process numbers its constants anew
    forget()
    assert torch.equal(first.output, emulated().output)
    assert code.read_bytes()[:32] != whole[:32]


OTHER = """.version 8.7
.target sm_80
.address_size 64
.visible .entry other() { ret; }
"""


def test_another_emulator_takes_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    data = to_bytes(load_program(OTHER), OTHER)
    assert from_bytes(data, OTHER) is not None
    monkeypatch.setattr(kept, "_emulator", lambda: b"of another release")
    assert from_bytes(data, OTHER) is None

# SPDX-License-Identifier: Apache-2.0
"""The script: help waits for no torch; without the extras it says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

import flash_attention
from flash_attention.call.dtype import DType
from flash_attention.families.passes import Pass
from flash_attention.ladder import get_ladder
from flash_attention_workbench.commands.commands import app

LISTS = ((), ("ladder",), ("cache",))
COMMANDS = ("doctor", "explain", "check", "bench", "tune", "inspect", "emulate", "debug", "report")
BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def child(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"},
    )


def test_help_of_every_command_and_the_version_import_no_torch() -> None:
    root: Any = typer.main.get_command(app)
    named: list[tuple[str, ...]] = [()]
    for group in LISTS:
        named += [(*group, name) for name in (root.commands[group[0]] if group else root).commands]
    assert len(named) > 18
    asked = [*((*command, "--help") for command in named), ("--version",)]
    result = child(
        "import sys, flash_attention_workbench.start\n"
        f"for arguments in {asked}:\n"
        "    sys.argv = ['flash-attention', *arguments]\n"
        "    try:\n"
        "        flash_attention_workbench.start.main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, (arguments, end.code)\n"
        "heavy = {'torch', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert result.returncode == 0, result.stderr
    for group in LISTS:
        assert f"Usage: {' '.join(('flash-attention', *group))} [OPTIONS] COMMAND" in result.stdout
    for command in COMMANDS:
        assert f"\u2502 {command} " in result.stdout
    for place in named:
        assert f"Usage: {' '.join(('flash-attention', *place))} [OPTIONS]" in result.stdout
    assert result.stdout.splitlines()[-1] == f"flash-attention {flash_attention.__version__}"


def test_a_list_of_rungs_imports_no_torch() -> None:
    result = child(
        "import sys, flash_attention_workbench.start\n"
        "for asked in ((), ('--pass', 'backward', '--dtype', 'bf16', '--d-head', '64')):\n"
        "    sys.argv = ['flash-attention', 'ladder', 'list', *asked]\n"
        "    try:\n"
        "        flash_attention_workbench.start.main()\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'cuda', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert result.returncode == 0, result.stderr
    printed = " ".join(result.stdout.split())
    for rung in (*get_ladder(), *get_ladder(DType.BF16, 64, pass_=Pass.BACKWARD)):
        assert f"{rung.number} {rung.name} " in printed


def test_words_are_completed() -> None:
    asked = "import os\nos.environ |= {'_FLASH_ATTENTION_COMPLETE': 'complete_bash', "
    asked += "'COMP_WORDS': 'flash-attention ladder r', 'COMP_CWORD': '2'}\n"
    assert child(
        asked + "import flash_attention_workbench.start as c\nc.main()"
    ).stdout.split() == ["run"]


def test_commands_run_behind_the_deferred_package() -> None:
    result = child(
        "import sys, flash_attention_workbench.start\n"
        "sys.argv = ['flash-attention', 'report', '--results', '/nowhere']\n"
        "try:\n"
        "    flash_attention_workbench.start.main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 2, end.code\n"
        "import flash_attention\n"
        "assert callable(flash_attention.attention), flash_attention.attention\n"
        "assert callable(flash_attention.forward), flash_attention.forward\n"
    )
    assert result.returncode == 0, result.stderr
    assert "/nowhere is no folder" in result.stderr


def test_pickle_finds_torch_in_the_process_of_a_command() -> None:
    result = child(
        "import sys, flash_attention_workbench.start\n"
        "sys.argv = ['flash-attention', 'bench', '--help']\n"
        "try:\n"
        "    flash_attention_workbench.start.main()\n"
        "except SystemExit:\n"
        "    import pickle, torch\n"
        "    kept = pickle.dumps(torch.contiguous_format)\n"
        "    assert pickle.loads(kept) is torch.contiguous_format\n"
    )
    assert result.returncode == 0, result.stderr


def test_the_library_works_without_the_extras() -> None:
    result = child(
        BLOCK + "import torch, flash_attention as fa\n"
        "from flash_attention.ladder import get_ladder\n"
        "q, k, v = (torch.randn(1, 64, 1, 64).to(torch.bfloat16) for _ in range(3))\n"
        "assert fa.attention(q, k, v).shape == q.shape\n"
        "config = get_ladder(fa.DType.BF16, 64, 1)[1].config\n"
        "assert fa.emulate(config, q, k, v).findings == ()\n"
        "assert fa.check(q, k, v, emulate=True).ok\n"
    )
    assert result.returncode == 0, result.stderr


def test_a_command_without_typer_says_what_to_install() -> None:
    for start in ("flash_attention_workbench.start", "flash_attention_workbench.commands"):
        result = child(BLOCK + f"from {start} import main\nmain()\n")
        assert result.returncode == 1
        needs = "flash-attention: the command line needs typer; "
        assert result.stderr == needs + "pip install 'flash-attention-jit[cli]'\n"


def test_a_file_is_emulated_by_the_emulators_own_command(tmp_path: Path) -> None:
    kernel = tmp_path / "twice.cu"
    kernel.write_text(
        'extern "C" __global__ void twice(float* x) { x[threadIdx.x] = 2 * x[threadIdx.x + 1]; }'
    )
    launch = ("--grid", "1", "--block", "64", "--arg", "f32:x:65@random")
    given = ["flash-attention", "emulate", str(kernel), *launch]
    done = child(
        f"import sys; sys.argv = {given}; from flash_attention_workbench.start import main; main()"
    )
    assert done.returncode == 1, done.stderr
    assert "race" in done.stdout


def test_the_file_of_a_rung_is_emulated_as_that_rung(tmp_path: Path) -> None:
    kernel = tmp_path / "mine.cu"
    kernel.write_text("// A rung.\n// config: fastest\n")
    given = ["flash-attention", "emulate", str(kernel)]
    done = child(
        f"import sys; sys.argv = {given}; from flash_attention_workbench.start import main; main()"
    )
    assert done.returncode == 2, done.stderr
    assert "fastest" in done.stderr
    assert "not a kernel config" in done.stderr

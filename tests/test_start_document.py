# SPDX-License-Identifier: Apache-2.0
"""docs/start.md: its programs train and generate, and its commands print what it shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tests.console import check_commands, masked

TEXT = (Path(__file__).parents[1] / "docs" / "start.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", TEXT, re.S)


@pytest.mark.slow
def test_its_programs_train_a_model_and_generate_with_it() -> None:
    assert len(PROGRAMS) == 2
    names: dict[str, Any] = {"__name__": "toy"}
    said = []
    for program, shown in PROGRAMS:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(program, "docs/start.md", "exec", dont_inherit=True), names)
        said.append(printed.getvalue())
        assert [*map(masked, said[-1].splitlines())] == [*map(masked, shown.splitlines())]
    assert float(said[0].split()[-1]) < 0.3
    assert said[1].startswith("she sells sea shells by the sea shore")


@pytest.mark.slow
def test_a_cache_changes_no_token() -> None:
    """Generation from the cache gives what the whole sequence gives without one."""
    torch = pytest.importorskip("torch")
    (program, _), (serving, _) = PROGRAMS
    names: dict[str, Any] = {"__name__": "toy"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(program.replace("range(121)", "range(3)"), names)
        exec(serving, names)
    ids = [names["letters"].index(c) for c in "she sells"]
    with torch.no_grad():
        for _ in range(8):
            logits = names["model"](torch.tensor([ids], device=names["device"]))
            ids.append(int(logits[0, -1].argmax()))
    assert names["generate"]("she sells", 8) == "".join(names["letters"][i] for i in ids)


@pytest.mark.slow
def test_its_commands_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    assert check_commands(TEXT) == 7

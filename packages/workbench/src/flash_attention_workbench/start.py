# SPDX-License-Identifier: Apache-2.0
"""Starts `flash-attention`, whose lists need not wait for torch.

Importing the package imports torch, since it defines torch operators. For the command line the
package is at first only a place to find modules in; a command that computes imports all of it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "flash_attention"
CONFIG = "\n// config: "  # in the file of a rung


class _Deferred(ModuleType):
    """A package whose own module runs when it is first asked for a name of its own."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if spec is None or spec.loader is None or (name[:2] == "__" and name != "__version__"):
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def _defer() -> None:
    """Let the package be imported as a place to find modules in."""
    spec = find_spec(PACKAGE)
    assert spec is not None  # it is installed with this one
    package = module_from_spec(spec)
    package.__class__ = _Deferred
    sys.modules[PACKAGE] = package


def main() -> None:
    """Entry point of the `flash-attention` script. `emulate FILE` is the emulator's own command,
    unless the file is that of a rung."""
    command, *rest = [*sys.argv[1:], ""]
    if command == "emulate" and any(_is_own_kernel(argument) for argument in rest):
        from ptx_emulator.command.main import main as emulate

        return emulate(rest[:-1])
    if PACKAGE not in sys.modules:
        _defer()
    from flash_attention_workbench.commands import main as run

    run()


def _is_own_kernel(argument: str) -> bool:
    """Whether an argument is a file with a kernel of the user's own."""
    if not argument.endswith((".cu", ".ptx")):
        return False
    try:
        return CONFIG not in Path(argument).read_text("utf-8", errors="replace")
    except OSError:
        return True  # whoever runs it says what is wrong


if __name__ == "__main__":
    main()

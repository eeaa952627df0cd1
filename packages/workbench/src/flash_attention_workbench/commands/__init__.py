# SPDX-License-Identifier: Apache-2.0
"""The command line, `flash-attention`."""

from __future__ import annotations

import os
import sys

from flash_attention_workbench.commands.interrupt import INTERRUPTED, ending_at_once
from flash_attention_workbench.extras import how_to_install


def main() -> None:
    """Entry point of the `flash-attention` script."""
    try:
        with ending_at_once():
            from flash_attention_workbench.commands.commands import BAD_INPUT, app
            from flash_attention_workbench.commands.console import tell
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"flash-attention: the command line needs {error.name}; {how_to_install('cli')}")
    try:
        try:
            app(prog_name="flash-attention")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough
        _forget_output()
        sys.exit(1)
    except OSError as error:  # files have said their own by now
        _forget_output()
        tell(f"{error.filename or 'cannot write standard output'}: {error.strerror or error}")
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # an ordinary end would wait for a compile, which none stops
            os._exit(INTERRUPTED)
        raise


def _forget_output() -> None:
    """Let what is still to be written go nowhere, so that Python does not fail at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

# SPDX-License-Identifier: Apache-2.0
"""Where `ptx-emulator` starts, and how it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ptx_emulator.command.options import Options, read_options
from ptx_emulator.errors import EmulatorError, UnsupportedError, shown

FOUND, REFUSED, INTERRUPTED = 1, 2, 130  # exit codes
STANDARD_OUTPUT = Path("-")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `ptx-emulator` script."""
    options = read_options(arguments)
    try:
        ok = _run(options)
        sys.stdout.flush()
    except EmulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(FOUND)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    sys.exit(0 if ok else FOUND)


def _run(options: Options) -> bool:
    from ptx_emulator.command.run import run_kernel  # what --help does not wait for

    if options.json == STANDARD_OUTPUT:
        with redirect_stdout(sys.stderr):
            record = run_kernel(options)
        print(_text(record))
    elif options.json is None:
        record = run_kernel(options)
    else:
        if not options.json.parent.is_dir():
            raise UnsupportedError(f"--json is {shown(str(options.json))}, in no folder there is")
        record = run_kernel(options)
        try:
            options.json.write_text(f"{_text(record)}\n")
        except OSError as error:
            raise UnsupportedError(f"cannot write {options.json}: {error.strerror}") from None
    return bool(record["ok"])


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1)

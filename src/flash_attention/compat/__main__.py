# SPDX-License-Identifier: Apache-2.0
"""Run a script that imports flash-attn: python -m flash_attention.compat script.py [arguments]."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from flash_attention.compat import install
from flash_attention.errors import UnsupportedError

USAGE = """usage: python -m flash_attention.compat [--replace] script.py [arguments]

Runs a script in which `import flash_attn` and `import flash_attn_interface` find the functions of
flash_attention. --replace does so even if the real packages are installed."""


def main(arguments: list[str]) -> None:
    """Call `install`, then run the script as Python would."""
    replace = arguments[:1] == ["--replace"]
    script = arguments[replace:]
    if not script or script[0].startswith("-"):
        sys.exit(USAGE)
    if not Path(script[0]).is_file():
        sys.exit(f"{script[0]} is no file; pass a script\n\n{USAGE}")
    try:
        install(replace=replace)
    except UnsupportedError as error:
        sys.exit(f"{error} (here: pass --replace)")
    sys.argv = script
    sys.path[0] = str(Path(script[0]).resolve().parent)
    runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file, with the folders above it; who reads it finds the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    target = path.resolve()
    if target.exists() and not target.is_file():  # such as /dev/stdout
        target.write_text(text)
        return
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(target)

# SPDX-License-Identifier: Apache-2.0
"""Some parts of the package alone, for processes that are to start without torch."""

from __future__ import annotations

from pathlib import Path

import flash_attention.errors

PACKAGE = Path(flash_attention.errors.__file__).parent


def import_path_with(folder: Path, *parts: str) -> Path:
    """An import path in `folder` that has these files and folders of the package, and no others."""
    package = folder / "bare" / "flash_attention"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()  # else an installed package would go before it
    for part in parts:
        (package / part).symlink_to((PACKAGE / part).resolve(strict=True))
    return package.parent

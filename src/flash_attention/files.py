# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced as a whole, and records in them: JSON with a line a field and a row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flash_attention.errors import UnsupportedError


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


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON object: a line a field, and a line for each object of a list of objects."""
    fields = ",\n".join(f" {json.dumps(name)}: {_value(value)}" for name, value in record.items())
    write_whole(path, f"{{\n{fields}\n}}\n")


def _value(value: Any) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
        return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
    return json.dumps(value)


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Errors of reading a file, and of finding in it what should be there, say `what` it is not."""
    try:
        yield
    except UnsupportedError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedError(f"{path} is not {what}: {error!r}") from error

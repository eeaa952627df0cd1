# SPDX-License-Identifier: Apache-2.0
"""use_table: let `attention` choose kernels from a table of the caller."""

from __future__ import annotations

import os

from flash_attention.choose.table import Table
from flash_attention.choose.table_file import load_table
from flash_attention.choose.tables import Source, check_device, logger, tables
from flash_attention.launch.plans import forget_plans


def use_table(table: Table | str | os.PathLike[str] | None, *, hint: bool = False) -> None:
    """Choose kernels from this table in all later calls of `attention`, and for their gradients.

    - `table`: a table, the path of a table file, or None for the default. The default is the file
      that $FLASH_ATTENTION_TABLE names, then the tables of this package.
    - `hint`: use the table although it was measured on another model of GPU.

    Raises UnsupportedError if the file is not a table, or if the table was measured on a GPU that
    this machine does not have and `hint` is False.
    """
    if table is None:
        tables.chosen = None
    else:
        name = "the table" if isinstance(table, Table) else str(table)
        loaded = table if isinstance(table, Table) else load_table(table)
        if not hint:
            check_device(loaded, name)
        for note in loaded.notes:
            logger.warning(note)
        tables.chosen = Source(loaded, name, hint)
    forget_plans()

# SPDX-License-Identifier: Apache-2.0
"""use_table: let `attention` choose by a table of one's own."""

from __future__ import annotations

import os

from flash_attention.choose.table import Table
from flash_attention.choose.table_file import load_table
from flash_attention.choose.tables import Source, check_device, logger, tables
from flash_attention.launch.plan import forget_plans


def use_table(table: Table | str | os.PathLike[str] | None, *, hint: bool = False) -> None:
    """Choose kernels by this table, or by this file, from now on; None goes back to the default.

    The default is the file that $FLASH_ATTENTION_TABLE names, then the tables of this package. A
    table of another device is refused unless it is to be a `hint`.
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

# SPDX-License-Identifier: Apache-2.0
"""The commands below `flash-attention ladder`."""

from __future__ import annotations

import typer

from flash_attention.tools.commands.ladder.diff import diff
from flash_attention.tools.commands.ladder.listing import list_rungs
from flash_attention.tools.commands.ladder.run import run
from flash_attention.tools.commands.ladder.show import show

ladder_app = typer.Typer(
    help="The ladder: list it, read a rung, compare two, run it.", no_args_is_help=True
)
ladder_app.command("list")(list_rungs)
ladder_app.command()(show)
ladder_app.command()(diff)
ladder_app.command()(run)

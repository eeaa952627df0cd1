# SPDX-License-Identifier: Apache-2.0
"""Other people's attention, to be timed beside ours, one module a source."""

from flash_attention_workbench.bench.names import PEERS
from flash_attention_workbench.bench.peers.lineup import (
    Lineup,
    checked_names,
    line_up,
)

__all__ = ["PEERS", "Lineup", "checked_names", "line_up"]

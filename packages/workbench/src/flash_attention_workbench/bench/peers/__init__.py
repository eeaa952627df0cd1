# SPDX-License-Identifier: Apache-2.0
"""Other people's attention, to be timed beside ours, one module a source."""

from flash_attention_workbench.bench.peers.lineup import (
    DEFAULT_PEERS,
    PEERS,
    Lineup,
    checked_names,
    line_up,
)

__all__ = ["DEFAULT_PEERS", "PEERS", "Lineup", "checked_names", "line_up"]

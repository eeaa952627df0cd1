# SPDX-License-Identifier: Apache-2.0
"""What the compiler tells people: each compile, and once that nothing can be kept on disk."""

from __future__ import annotations

import logging
import os
import sys
import threading

logger = logging.getLogger("flash_attention")

_told_memory_only = threading.Lock()  # taken by the one warning of this process, never freed


QUIET_VARIABLE = "FLASH_ATTENTION_QUIET"


def announce(message: str) -> None:
    """Log `message` at INFO; where nobody set up logging, print it to stderr."""
    if os.environ.get(QUIET_VARIABLE) == "1":
        return
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        logger.info(message)
    else:
        print(f"flash_attention: {message}", file=sys.stderr)


def warn_memory_only(reason: str) -> None:
    """Warn, at most once in this process, that kernels are not kept on disk."""
    if _told_memory_only.acquire(blocking=False):
        logger.warning(
            "%s; compiled kernels stay in memory and every new process compiles them again. "
            "Set FLASH_ATTENTION_CACHE_DIR to a folder of yours that can be written",
            reason,
        )

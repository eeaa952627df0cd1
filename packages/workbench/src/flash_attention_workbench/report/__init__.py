# SPDX-License-Identifier: Apache-2.0
"""Stored results as one HTML page that needs nothing else."""

from flash_attention_workbench.report.document import render_page
from flash_attention_workbench.report.rungs import LaunchText, RungText

__all__ = ["LaunchText", "RungText", "render_page"]

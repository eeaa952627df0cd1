# SPDX-License-Identifier: Apache-2.0
"""What every unit knows of a launch: its lanes, clocks, findings and counters."""

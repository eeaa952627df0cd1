# SPDX-License-Identifier: Apache-2.0
"""A rung as one file: its headers parsed, specialised to its config, and laid out to be read."""

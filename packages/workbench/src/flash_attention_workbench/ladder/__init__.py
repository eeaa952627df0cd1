# SPDX-License-Identifier: Apache-2.0
"""A rung as one file, to be read and changed."""

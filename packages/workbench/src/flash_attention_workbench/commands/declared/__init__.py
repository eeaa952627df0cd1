# SPDX-License-Identifier: Apache-2.0
"""The commands as their help shows them.

Nothing here imports torch: what a command does is imported when it runs.
"""

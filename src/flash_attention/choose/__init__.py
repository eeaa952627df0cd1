# SPDX-License-Identifier: Apache-2.0
"""From a problem to the config that runs it: given, short queries, a table, or a heuristic."""

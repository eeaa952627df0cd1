# SPDX-License-Identifier: Apache-2.0
"""Choose the config that runs a problem: by the caller, split-KV, a table or a heuristic."""

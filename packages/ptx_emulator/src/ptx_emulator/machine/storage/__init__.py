# SPDX-License-Identifier: Apache-2.0
"""The bytes of memories: allocations, who owns them and who touched them."""

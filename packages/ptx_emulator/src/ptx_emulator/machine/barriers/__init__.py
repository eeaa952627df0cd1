# SPDX-License-Identifier: Apache-2.0
"""What warps wait at: barriers of a CTA and of a cluster, mbarriers, the pool of registers."""

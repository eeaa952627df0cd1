# SPDX-License-Identifier: Apache-2.0
"""The backward kernels of sm_90: wgmma, TMA and warp specialisation."""

# SPDX-License-Identifier: Apache-2.0
"""The tuner: kernels timed on this GPU, tables of the fastest, and the choice they make."""

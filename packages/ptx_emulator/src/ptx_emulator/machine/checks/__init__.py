# SPDX-License-Identifier: Apache-2.0
"""Is every access ordered with those it conflicts with, and was what it reads written?"""

# SPDX-License-Identifier: Apache-2.0
"""What a user's mask or score function becomes: a small program, and its readers."""

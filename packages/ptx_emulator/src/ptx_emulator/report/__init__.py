# SPDX-License-Identifier: Apache-2.0
"""What a run found and counted, as lines and tables for people."""

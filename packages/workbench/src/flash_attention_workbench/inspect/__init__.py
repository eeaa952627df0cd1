# SPDX-License-Identifier: Apache-2.0
"""One kernel looked at closely: resources, machine code, the hot loop, what limits it."""

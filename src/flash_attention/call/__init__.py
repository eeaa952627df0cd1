# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call, the checks that do not depend on the kernel, and the problem."""

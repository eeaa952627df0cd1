# SPDX-License-Identifier: Apache-2.0
"""What was asked: the call, the rules that it obeys whatever the kernel, and its problem."""

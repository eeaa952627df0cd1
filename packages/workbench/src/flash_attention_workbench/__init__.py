# SPDX-License-Identifier: Apache-2.0
"""The workbench: checks, explains, times, tunes, inspects, debugs and reports on the kernels of
`flash_attention`, also from the command line.

`flash_attention` serves `check`, `explain`, `tune` and `tuning` under its own name. A module is
imported when it is used, so that a list of commands waits for no torch.
"""

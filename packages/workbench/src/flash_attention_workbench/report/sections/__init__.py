# SPDX-License-Identifier: Apache-2.0
"""The sections of the page, one a module, in the order of `document.py`."""

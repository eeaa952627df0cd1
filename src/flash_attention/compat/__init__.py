# SPDX-License-Identifier: Apache-2.0
"""`attention` under the names and conventions of other libraries.

Importing these modules changes nothing. A function has to be called, such as `install`.
"""

from flash_attention.compat.counter import calls
from flash_attention.compat.drop_in import install, uninstall

__all__ = ["calls", "install", "uninstall"]

# SPDX-License-Identifier: Apache-2.0
"""`attention` under the names and conventions of other libraries. Importing activates nothing."""

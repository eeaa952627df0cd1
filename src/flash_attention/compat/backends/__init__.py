# SPDX-License-Identifier: Apache-2.0
"""Classes that serving engines import by name. Each module needs its engine, and is imported by
nothing else."""

# SPDX-License-Identifier: Apache-2.0
"""Starts `flash-attention`, whose help need not wait for torch.

Importing the package imports torch, since it defines torch operators. The command line imports the
modules it needs by themselves; the package's own names are there when something asks for one.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

PACKAGE = "flash_attention"


class _Deferred(ModuleType):
    """A package whose own module runs when it is asked for a name that no submodule has."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if (name.startswith("__") and name != "__version__") or spec is None or spec.loader is None:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(self)
        return getattr(self, name)


def main() -> None:
    """Entry point of the `flash-attention` script."""
    spec = find_spec(PACKAGE)
    assert spec is not None  # it is installed with this module
    package = module_from_spec(spec)
    package.__class__ = _Deferred
    sys.modules[PACKAGE] = package
    from flash_attention.tools.commands import main as run

    run()


if __name__ == "__main__":
    main()

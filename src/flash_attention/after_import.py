# SPDX-License-Identifier: Apache-2.0
"""An import hook that acts on modules of other packages when a program imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport:
    """Calls what `acts` has for a module's name with the module, each time the module has run.
    Belongs into `sys.meta_path`."""

    def __init__(self, acts: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self.acts = acts

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as other finders do."""
        act = self.acts.get(name)
        if act is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (other.find_spec(name, path, target) for other in others)), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                act(module)

            loader.exec_module = execute_and_act
        return spec

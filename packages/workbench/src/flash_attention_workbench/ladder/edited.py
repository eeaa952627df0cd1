# SPDX-License-Identifier: Apache-2.0
"""The file of a rung that somebody has changed, and how it runs in place of the rung's kernel."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from flash_attention.compile import CompiledKernel, compile_to_ptx
from flash_attention.compile.unit import Unit
from flash_attention.errors import UnsupportedError
from flash_attention.families.registry import unit_of
from flash_attention.kernel_configs import KernelConfig, as_kernel_config
from flash_attention.launch.emulation import compiled_unit

CONFIG = "config:"  # before the short form, in a comment of the file


@dataclass(frozen=True)
class EditedRung:
    """A file that `flash-attention ladder show` printed, and the config that it names."""

    path: Path
    text: str
    config: KernelConfig

    @classmethod
    def read(cls, path: Path) -> EditedRung:
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            raise UnsupportedError(f"{path} cannot be read: {reason}") from None
        found = re.search(rf"^// {CONFIG} (.+)$", text, re.MULTILINE)
        if found is None:
            raise UnsupportedError(
                f"{path} has no line `// {CONFIG} ...`, which names the config that it is launched"
                " as; `flash-attention ladder show 5 > rung5.cu` writes a file that has one"
            )
        return cls(path, text, as_kernel_config(found[1]))

    def compile(self, unit: Unit) -> CompiledKernel:
        """The file in place of the kernel of its config; kernels before and after it as they are.

        Compiler messages and findings name the lines of the file.
        """
        own = unit_of(self.config).name
        if unit.name == own:
            text = f"#line 1 {json.dumps(str(self.path.resolve()))}\n{self.text}"
            return compile_to_ptx(text, arch=unit.target, name="edited")
        if unit.name.startswith(own):
            raise UnsupportedError(
                f"{self.path} is the kernel {own}, and this call needs {unit.name}; leave --causal"
                " out, and pass a --seq that is a multiple of the tile, such as 256"
            )
        return compiled_unit(unit)

# SPDX-License-Identifier: Apache-2.0
"""docs/api.md: every public name, from its signature and its docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import flash_attention
import flash_attention_workbench
import ptx_emulator
from benchmarks.render.blocks import table
from flash_attention import compat
from flash_attention.arch import Arch
from flash_attention.families.fields import KEY

DOCUMENT = Path("docs/api.md")
SOURCES = [Path(*one.__path__) for one in (flash_attention, flash_attention_workbench)]
MODULES = (
    "",
    ".distributed",
    ".kernel_configs",
    ".ladder",
    ".masks",
    ".scores",
    ".testing",
)
PACKAGES = (flash_attention.__name__, ptx_emulator.__name__)
WIDTH = 100
HEAD = """# API reference

`python -m benchmarks.render` writes this page from signatures and docstrings.
[attention.md](attention.md) explains the calls, [commands.md](commands.md) the command line.
"""
VARIABLES = {
    "FLASH_ATTENTION_CACHE_DIR": (
        "The folder of compiled kernels. If it is not set, it is `flash_attention` below "
        "`XDG_CACHE_HOME`, or below `~/.cache`."
    ),
    "FLASH_ATTENTION_CACHE_LIMIT": (
        "How much room compiled kernels may take, as in `500 MiB`; 2 GiB if it is not set. Those "
        "that were not used for longest are removed first."
    ),
    "FLASH_ATTENTION_FA3": "The path of FlashAttention-3's library, a peer of `bench`.",
    "FLASH_ATTENTION_KERNELS": (
        "The set of kernels to build: `progression` (the ladder), `autotuning` or `all`."
    ),
    "FLASH_ATTENTION_NVTX": "With 1, every call is an NVTX range with the kernel's config.",
    "FLASH_ATTENTION_QUIET": "With 1, no line is printed when a kernel is compiled.",
    "FLASH_ATTENTION_STRICT": (
        "With 1, or the name of an architecture, a call on the CPU is refused if a GPU would "
        "refuse it."
    ),
    "FLASH_ATTENTION_TABLE": (
        "A tuned table, from which `attention` chooses kernels before it asks the package's own."
    ),
    "FLASH_ATTENTION_VALIDATE": (
        "With 1 when `compat` is imported, its functions check the values of lengths and page "
        "tables as `validate=True` of `attention` does, and wait for the GPU."
    ),
    "FLASH_ATTENTION_WORKSPACE_MIB": (
        "How many MiB the parts of a backward pass may share, and the sums of split heads may take;"
        " 2048 if it is not set."
    ),
}


def api_page() -> str:
    """The whole page."""
    parts: list[str] = [HEAD, contents()]
    known: dict[int, str] = {}
    for module in modules():
        parts.append(f"## `{module.__name__}`\n\n{doc_of(module)}\n")
        for name in public_names(module):
            value = getattr(module, name)
            parts.append(entry(module.__name__, name, value, known))
    rows = [[f"`{name}`", VARIABLES[name]] for name in sorted(variables_used())]
    parts.append("## Environment variables\n\n" + "\n".join(table(["name", "what"], rows, left=2)))
    return "\n".join(parts) + "\n"


def contents() -> str:
    """Every module and its names, each with a link to its heading. A heading that another one
    above has too is not linked."""
    linked: set[str] = set()
    lines = []
    for module in modules():
        shown = []
        for name in public_names(module):
            shown.append(f"`{name}`" if name.lower() in linked else link(name))
            linked.add(name.lower())
        lines.append(f"- {link(module.__name__)}: {', '.join(shown)}")
    lines.append("- [Environment variables](#environment-variables)")
    return "\n".join(lines) + "\n"


def link(name: str) -> str:
    """A link to the heading `name`."""
    return f"[`{name}`](#{name.replace('.', '').lower()})"


def modules() -> list[ModuleType]:
    """The public modules; of `compat`, those that say what is theirs."""
    found = [importlib.import_module(f"flash_attention{name}") for name in MODULES]
    below = [f"{compat.__name__}.{one.name}" for one in pkgutil.iter_modules(compat.__path__)]
    names = [compat.__name__, *(name for name in below if not name.endswith("__main__"))]
    others = [importlib.import_module(name) for name in names]
    return [*found, ptx_emulator, *(one for one in others if hasattr(one, "__all__"))]


def public_names(module: ModuleType) -> list[str]:
    """What a module exports: functions and classes, errors last."""
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if not name.startswith("_")])
    shown = [name for name in names if callable(getattr(module, name))]
    return sorted(shown, key=lambda name: (is_error(getattr(module, name)), name.lower()))


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def entry(module: str, name: str, value: Any, known: dict[int, str]) -> str:
    """A name's section; a name that has one elsewhere leads there."""
    if (place := known.setdefault(id(value), f"{module}.{name}")) != f"{module}.{name}":
        return f"### `{name}`\n\nThe same as `{place}`.\n"
    lines = [
        f"### `{name}`",
        "",
        "```python",
        *signature_lines(name, value),
        "```",
        "",
        doc_of(value),
    ]
    if isinstance(value, type):
        lines += class_lines(value)
    return "\n".join(lines) + "\n"


def doc_of(value: object) -> str:
    """The docstring; of a class, its own."""
    if isinstance(value, type) and "__doc__" not in vars(value):
        return ""
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


def signature_lines(name: str, value: Any) -> list[str]:
    """How it is called: in one line, or a line an argument."""
    made = is_dataclass(value) or "__init__" in vars(value) or hasattr(value, "_fields")
    if isinstance(value, type) and (is_error(value) or not made):
        return [f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"]
    signature = inspect.signature(value)
    head, end = (f"class {name}", ")") if isinstance(value, type) else (name, ")")
    if not isinstance(value, type) and signature.return_annotation is not signature.empty:
        end += f" -> {annotation(signature.return_annotation)}"
    written = list(arguments(signature))
    whole = f"{head}({', '.join(written)}{end}"
    return [whole] if len(whole) <= WIDTH else [f"{head}(", *(f"    {a}," for a in written), end]


def arguments(signature: inspect.Signature) -> Iterator[str]:
    """The arguments as they are written, with the star before those that need their names."""
    kinds = inspect.Parameter
    starred = False
    for parameter in signature.parameters.values():
        if parameter.kind is kinds.KEYWORD_ONLY and not starred:
            yield "*"
        starred |= parameter.kind in (kinds.KEYWORD_ONLY, kinds.VAR_POSITIONAL)
        stars = "**" if parameter.kind is kinds.VAR_KEYWORD else ""
        stars = "*" if parameter.kind is kinds.VAR_POSITIONAL else stars
        typed = f": {annotation(parameter.annotation)}"
        equals = f" = {shown(parameter.default)}" if parameter.default is not kinds.empty else ""
        yield f"{stars}{parameter.name}{typed if len(typed) > 2 else ''}{equals}"


def annotation(value: object) -> str:
    """A type as it is written in the source."""
    if value is inspect.Parameter.empty:
        return ""
    value = getattr(value, "__forward_arg__", value)
    return str(value if isinstance(value, str) else getattr(value, "__name__", value)).strip("'")


def shown(value: object) -> str:
    """A default as a caller would write it."""
    if isinstance(value, Arch):
        return f'ARCHES["{value.name}"]'
    if callable(value):
        return "..."
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def class_lines(value: type) -> list[str]:
    """Members of an enum, fields of a dataclass, methods and properties that have a docstring."""
    lines: list[str] = []
    if issubclass(value, Enum):
        lines += ["", "Members: " + ", ".join(f"`{member.name}`" for member in value) + "."]
    if is_error(value) and (kept := re.findall(r"self\.(\w+) =", source_of(value))):
        lines += ["", "Attributes: " + ", ".join(f"`{name}`" for name in kept) + "."]
    if is_dataclass(value):
        lines += ["", *table(["field", "type", "default", "what"], field_rows(value), 4)]
    members = [
        (name, member)
        for owner in reversed(value.__mro__)
        if owner.__module__.startswith(PACKAGES)
        for name, member in vars(owner).items()
        if not name.startswith("_") and method_doc(member)
    ]
    rows = [[f"`{how(name, one)}`", method_doc(one)] for name, one in dict(members).items()]
    return lines + (["", *table(["member", "what"], rows, left=2)] if rows else [])


def field_rows(value: Any) -> list[list[str]]:
    """The fields of a dataclass; what each is, where its declaration or a comment says so."""
    source = "".join(source_of(owner) for owner in reversed(value.__mro__))
    said = dict(re.findall(r"^    (\w+): [^#\n]*  # (.*)$", source, re.M))
    said |= {one.name: one.metadata[KEY].what for one in fields(value) if KEY in one.metadata}
    return [
        [
            f"`{field.name}`",
            f"`{annotation(field.type)}`".replace("|", "\\|"),
            default_of(field),
            said.get(field.name, "").replace("|", "\\|"),
        ]
        for field in fields(value)
    ]


def source_of(value: type) -> str:
    return inspect.getsource(value) if value.__module__.startswith(PACKAGES) else ""


def default_of(field: Field[Any]) -> str:
    return "" if field.default is MISSING else f"`{shown(field.default)}`"


def method_doc(member: Any) -> str:
    """The first paragraph of a method's or a property's docstring, in one line."""
    inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
    if not inspect.isfunction(inner):
        return ""
    first = inspect.cleandoc(inner.__doc__ or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def how(name: str, member: Any) -> str:
    """A property by its name, a method with the arguments that it takes."""
    if isinstance(member, property):
        return name
    inner = getattr(member, "__func__", member)
    taken = list(inspect.signature(inner).parameters.values())
    own = taken if isinstance(member, staticmethod) else taken[1:]
    return f"{name}({', '.join(parameter.name for parameter in own)})"


def variables_used() -> set[str]:
    """The environment variables of the package: assigned to a name that ends so, or asked for."""
    found = set()
    for path in (path for source in SOURCES for path in source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign | ast.Call) and _names_a_variable(node):
                inside = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                found |= {v for v in inside if str(v).startswith("FLASH_ATTENTION_")}
    return {str(name) for name in found}


def _names_a_variable(node: ast.Assign | ast.Call) -> bool:
    if isinstance(node, ast.Call):
        return "environ" in ast.unparse(node.func)
    return any(ast.unparse(target).rstrip(")").endswith("VARIABLE") for target in node.targets)

# SPDX-License-Identifier: Apache-2.0
"""Verdicts on tiles in CUDA C++, and the tables of minima and maxima that they look at."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from flash_attention.program.cuda_reader import head_lines
from flash_attention.program.expressions import LIBRARY, is_leaf, leaf, read
from flash_attention.program.intervals import Number, Span, mask_truth
from flash_attention.program.layout import struct_text
from flash_attention.program.nodes import DTYPES, FLOAT, INT, Node, Program
from flash_attention.program.reads import BLOCK, Reading, is_uniform, reading, tables
from flash_attention.program.trace import Traced
from flash_attention.program.verdict import fold

HEADER = "fa/attn/verdict.cuh"  # what the text needs to be included before it
_QUALIFIERS = "static __device__"
_TILE = "int batch, int head, int q0, int q1, int k0, int k1"


def table_shape(traced: Traced, slot: int) -> tuple[int, int, int]:
    """The shape of a table: rows, blocks of a row, and {minimum, maximum}. Its elements are 32-bit
    floats for a tensor of floats, and 32-bit integers for others."""
    *matrices, rows, columns = 1, *traced.tensors[slot].shape
    height = tables(traced.program)[slot]
    return prod(matrices) * -(-rows // height), -(-columns // BLOCK), 2


def bounds_arguments(program: Program, pointers: Sequence[int]) -> bytes:
    """The bytes of `struct Bounds`: the addresses of the tables in the order of their slots."""
    slots = tables(program)
    assert len(pointers) == len(slots)
    return struct.pack(f"={max(len(slots), 1)}Q", *(pointers or (0,)))


def tables_bytes(traced: Traced) -> int:
    """The bytes of all tables of a call."""
    return sum(4 * prod(table_shape(traced, slot)) for slot in tables(traced.program))


def verdict_text(program: Program, name: str = "Verdict") -> str:
    """A struct with `Args`, which are those of `cuda_text`; `Bounds`, the tables; `fill`, by which
    warps fill the tables; and `verdict`, which is 0 for an empty tile, 1 for a full one and 2 for
    one that may be partial. q1 and k1 are the last query and key. The text needs HEADER."""
    slots = tables(program)
    fields = " ".join(f"{_element(program, slot)}* table{slot};" for slot in slots)
    body = [
        struct_text(program),
        f"struct Bounds {{ {fields or 'long long none;'} }};",
        *_tables(program),
        *_fill(program),
        *_verdict(program),
    ]
    return f"struct {name} {{\n" + "\n".join(body) + "\n};\n"


def _element(program: Program, slot: int) -> str:
    return "float" if DTYPES[program.tensors[slot].dtype] == FLOAT else "int"


def _sizes(program: Program, slot: int) -> tuple[list[str], str, str]:
    """The dimensions before the last two, and the rows and columns of a matrix."""
    sizes = [f"args.size{slot}[{dimension}]" for dimension in range(program.tensors[slot].ndim)]
    return sizes[:-2], sizes[-2] if len(sizes) > 1 else "1", sizes[-1]


def _tables(program: Program) -> list[str]:
    """The tables in one piece of memory, one after the other."""
    lines = [
        f"{_QUALIFIERS} Bounds tables(const Args& args, void* memory) {{",
        "Bounds bounds = {};",
        "int* next = static_cast<int*>(memory);",
    ]
    for slot, height in tables(program).items():
        matrices, rows, columns = _sizes(program, slot)
        blocks = [f"{LIBRARY}blocks_of<{height}>({rows})", f"{LIBRARY}blocks_of({columns})"]
        entries = " * ".join(["2ll", *matrices, *blocks])
        element = _element(program, slot)
        lines.append(f"bounds.table{slot} = reinterpret_cast<{element}*>(next), next += {entries};")
    return [*lines, "return bounds;", "}"]


def _fill(program: Program) -> list[str]:
    lines = [
        f"{_QUALIFIERS} void fill(const Args& args, const Bounds& bounds, long long warp,"
        " long long warps) {"
    ]
    for slot, height in tables(program).items():
        matrices, rows, columns = _sizes(program, slot)
        count = " * ".join(["1ll", *matrices])
        lines += [
            f"{LIBRARY}fill_bounds<{height}>(bounds.table{slot}, {count}, {rows}, {columns}, warp,",
            f"warps, [&](long long matrix, int row, int column) -> {_element(program, slot)} {{",
            "long long at = 0;",
        ]
        for dimension, size in reversed([*enumerate(matrices)]):
            lines.append(
                f"at += matrix % {size} * args.stride{slot}[{dimension}], matrix /= {size};"
            )
        lines += [f"return {_read(program, slot)};", "});"]
    return [*lines, "}"]


def _read(program: Program, slot: int) -> str:
    """An element of the matrix that begins at `at`."""
    dtype, ndim = program.tensors[slot]
    places = zip(("column", "row"), range(ndim - 1, -1, -1), strict=False)
    offsets = (f" + {name} * args.stride{slot}[{dimension}]" for name, dimension in places)
    return read(dtype, f"args.tensor{slot} + at{''.join(offsets)}")


def _verdict(program: Program) -> list[str]:
    text = _Text(program)
    truth = mask_truth(program, text)
    may, may_not = text.text(truth.may), text.text(truth.may_not)
    return [
        f"{_QUALIFIERS} int verdict(const Args& args, const Bounds& bounds, {_TILE}) {{",
        "bool trusted = true;",
        *head_lines(program, sorted(text.roots)),
        *text.lines,
        f"return !trusted ? 2 : !{may} ? 0 : {may_not} ? 2 : 1;",
        "}",
    ]


class _Value(NamedTuple):
    """A number that is known when the kernel runs."""

    text: str
    type: str  # "long long", "float" or "bool"


class _Text:
    """Bounds as CUDA text: one statement for each operation. Constants are folded."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[str, _Value] = {}
        self.lines: list[str] = []
        self.roots: set[int] = set()

    def text(self, value: Number) -> str:
        """A value or a constant."""
        if isinstance(value, _Value):
            return value.text
        if isinstance(value, bool):
            return str(value).lower()
        return f"{value!r}f" if isinstance(value, float) else f"{value}ll"

    def apply(self, op: str, *values: Number) -> Number:
        """An operation."""
        if not any(isinstance(each, _Value) for each in values):
            return fold(op, *values)
        simple = _simplified(op, *values)
        if simple is not None:
            return simple
        types = [each.type for each in values if isinstance(each, _Value)]
        type_ = _RESULTS.get(op) or types[-1]
        return self._statement(_TEXTS[op].format(*map(self.text, values)), type_)

    def _statement(self, expression: str, type_: str) -> _Value:
        value = self._known.get(expression)
        if value is None:
            value = self._known[expression] = _Value(f"v{len(self._known)}", type_)
            self.lines.append(f"const {type_} {value.text} = {expression};")
        return value

    def uniform(self, index: int) -> Number:
        """The value of a node."""
        node = self._program.nodes[index]
        assert is_uniform(self._program, index)
        self.roots.add(index)
        text = leaf(node) if is_leaf(node) else f"n{index}"
        return self._wide(text) if node.type == INT else _Value(text, node.type)

    def _wide(self, text: str) -> _Value:
        return self._statement(f"static_cast<long long>({text})", "long long")

    def edge(self, name: str) -> Number:
        """An edge of the tile."""
        return self._wide(name)

    def extremes(self, node: Node, indices: Sequence[Span]) -> Span:
        """Bounds from a table, or from the elements."""
        slot = int(node.detail or 0)
        sizes = _sizes(self._program, slot)
        spans = [(0, 0), *indices][-2:]
        (top, bottom), (first, last) = ((self.text(a), self.text(b)) for a, b in spans)
        within = f"{sizes[1]}, {top}, {bottom}, {sizes[2]}, {first}, {last}, trusted"
        matrix = [
            f"{LIBRARY}within(static_cast<int>({self.text(index)}), {size})"
            for (index, _), size in zip(indices, sizes[0], strict=False)
        ]
        element = _element(self._program, slot)
        found = f"e{len(self.lines)}"
        if reading(self._program, node) is Reading.ELEMENTS:
            strides = enumerate(matrix)
            at = "".join(f" + {place} * args.stride{slot}[{d}]" for d, place in strides)
            self.lines += [
                f"const auto {found} = {LIBRARY}extremes<{element}>({within},",
                f"[&, at = 0ll{at}](int row, int column) -> {element} {{",
                f"return {_read(self._program, slot)};",
                "});",
            ]
        else:
            number = "0ll"
            for place, size in zip(matrix, sizes[0], strict=True):
                number = f"({number} * {size} + {place})"
            height = tables(self._program)[slot]
            table = f"{LIBRARY}Table<{element}, {height}>{{bounds.table{slot}, {number}}}"
            self.lines.append(f"const auto {found} = {table}.extremes({within});")
        if element == "float":
            return _Value(f"{found}.low", element), _Value(f"{found}.high", element)
        return self._wide(f"{found}.low"), self._wide(f"{found}.high")

    def distrust(self, condition: Number) -> None:
        """Know nothing of the tile if the condition holds."""
        if condition is not False:
            self.lines.append(f"trusted = trusted && !({self.text(condition)});")


def _simplified(op: str, *values: Number) -> Number | None:
    """What an operation with a constant is, if it is simple."""
    if op == "select":
        condition, left, right = values
        return None if isinstance(condition, _Value) else left if condition else right
    if len(values) != 2:
        return None
    for value, other in (values, values[::-1]):
        if isinstance(value, _Value):
            continue
        if op in ("and", "or"):
            return other if value is (op == "and") else value
        if type(value) is int and ((op == "add" and value == 0) or (op == "mul" and value == 1)):
            return other
        if type(value) is int and op == "mul" and value == 0:
            return 0
    return values[0] if op == "sub" and type(values[1]) is int and values[1] == 0 else None


_RESULTS = {
    **dict.fromkeys(("lt", "le", "eq", "ne", "and", "or", "not"), "bool"),
    "float": "float",
    "int": "long long",
}
_TEXTS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "__fdiv_rn({0}, {1})",
    "floordiv": LIBRARY + "floor_divide({0}, {1})",
    "min": "min({0}, {1})",
    "max": "max({0}, {1})",
    "neg": "-{0}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "and": "{0} && {1}",
    "or": "{0} || {1}",
    "not": "!{0}",
    "select": "{0} ? {1} : {2}",
    "float": "static_cast<float>({0})",
    "int": "static_cast<long long>({0})",
    "floor": "floorf({0})",
    "exp": "expf({0})",
    "exp2": "exp2f({0})",
    "log": "logf({0})",
    "sqrt": "sqrtf({0})",
    "tanh": "tanhf({0})",
    "sigmoid": LIBRARY + "sigmoid({0})",
    "below": LIBRARY + "below({0})",
    "above": LIBRARY + "above({0})",
}

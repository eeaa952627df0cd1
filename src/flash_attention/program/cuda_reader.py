# SPDX-License-Identifier: Apache-2.0
"""A program in CUDA C++: a struct whose functions compute what needs the head, the query, the key,
and both. An expression in one piece would be computed ahead in one piece, and spill registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from flash_attention.program.bias import bias_load
from flash_attention.program.derivative import Derivative, LoadGradient, differentiate
from flash_attention.program.expressions import (
    FAST_TANH,
    LIBRARY,
    is_leaf,
    leaf,
    operation,
    read,
    store,
    unpack,
)
from flash_attention.program.layout import DIGITS, ELEMENTS, gradient_text, struct_text
from flash_attention.program.nodes import FLOAT, INT, KEY, QUERY, SCORE, How, Node, Program, needed
from flash_attention.program.tilt import tilt_of

HEADER = "fa/attn/function.cuh"  # what the text needs to be included before it


class Level(IntEnum):
    """What a value can be computed from."""

    HEAD = 0  # batch and head
    QUERY = 1
    KEY = 2
    ELEMENT = 3  # a query and a key, or the score


_STRUCTS = {Level.HEAD: "OfHead", Level.QUERY: "OfQuery", Level.KEY: "OfKey"}
_PARAMETERS = {
    Level.HEAD: "const Args& args, int batch, int head",
    Level.QUERY: "const Args& args, const OfHead& at_head, int batch, int head, int query",
    Level.KEY: "const Args& args, const OfHead& at_head, int batch, int head, int key",
}
_AT = "const Args& args, const OfHead& at_head, const OfQuery& at_query, const OfKey& at_key"
_COORDINATES = "int batch, int head, int query, int key"
_DISTANCE = ", float distance"  # from the query to the key, which a kernel adds up
_QUALIFIERS = "static __device__ __forceinline__"


def cuda_text(program: Program, name: str = "Function", *, bias: bool = False) -> str:
    """The struct of a program. It needs HEADER. `slope` is the derivative of `score` by the score.
    `Loads` are the reads of tensors whose gradients are wanted. The type of a read says what the
    derivative by the element is, where the gradient of the element is, and how to add to it.

    With `bias`, what `bias_load` finds is not read from memory: the kernel puts the element of a
    query and a key into `OfKey::bias`, out of a pair that `bias` unpacks. `plane` says where in the
    tensor the elements of a head are.

    The hyperbolic tangent in scores is good to 2^-11, as softcap's; all else to a few roundings.
    """
    found = differentiate(program)
    return _Printer(found, bias_load(program) if bias else None).struct(name)


def head_lines(program: Program, roots: Iterable[int]) -> list[str]:
    """Statements for the nodes that depend on the batch and the head alone: node 3 is `n3`."""
    function = _Function(_Printer(Derivative(program, -1, ())), Level.HEAD)
    function.print(roots)
    return function.lines


class _Member(NamedTuple):
    """A field of OfHead, OfQuery or OfKey."""

    type: str
    roots: tuple[int, ...]  # nodes that it is made of
    make: Callable[[_Function], str]


class _Memory(NamedTuple):
    """Where elements of a captured tensor, or of its gradient, lie."""

    pointer: str  # its type
    base: str  # the argument that points at the first element, without its slot
    stride: str
    name: str  # of what is computed ahead


class _Function:
    """A function while it is printed."""

    def __init__(self, printer: _Printer, level: Level) -> None:
        self.printer = printer
        self.level = level
        self.lines: list[str] = []

    def print(self, roots: Iterable[int]) -> None:
        """Print the nodes that belong to this function and that the roots need."""
        nodes = self.printer.nodes
        for index in sorted(needed(nodes, roots)):
            if not is_leaf(nodes[index]) and self.printer.level(index) == self.level:
                expression = self.printer.expression(self, index)
                self.lines.append(f"const {nodes[index].type} n{index} = {expression};")

    def value(self, index: int) -> str:
        """The text of a node in this function."""
        node = self.printer.nodes[index]
        if is_leaf(node):
            return leaf(node)
        level = self.printer.level(index)
        if level == self.level:
            return f"n{index}"
        return self.member(
            level, f"n{index}", _Member(node.type, (index,), lambda f: f.value(index))
        )

    def member(self, level: Level, name: str, member: _Member) -> str:
        """The text of what another function computes."""
        self.printer.members[level].setdefault(name, member)
        return f"at_{level.name.lower()}.{name}"


class _Printer:
    def __init__(self, derivative: Derivative, bias: int | None = None) -> None:
        self.program = derivative.program
        self.bias = bias  # the read whose elements the kernel gives
        self.derivative = derivative
        self.nodes = derivative.program.nodes
        self.members: dict[Level, dict[str, _Member]] = {level: {} for level in _STRUCTS}
        self._exact = needed(self.nodes, [self.program.mask])

    def level(self, index: int) -> Level:
        """Which function computes a node."""
        bits = self.program.depends[index]
        if bits & SCORE or (bits & QUERY and bits & KEY):
            return Level.ELEMENT
        return Level.QUERY if bits & QUERY else Level.KEY if bits & KEY else Level.HEAD

    def expression(self, function: _Function, index: int) -> str:
        """A node in terms of its inputs."""
        node = self.nodes[index]
        if index == self.bias:
            return function.member(Level.KEY, "bias", _Member("float", (), lambda _: "0.f"))
        if node.op == "load":
            dtype = self.program.tensors[int(node.detail or 0)].dtype
            source = _Memory(f"const {ELEMENTS[dtype]}*", "tensor", "stride", str(index))
            return read(dtype, self._address(function, source, int(node.detail or 0), node.inputs))
        if index not in self._exact and function.level != Level.HEAD:
            if node.op == "tanh":
                return FAST_TANH.format(function.value(node.inputs[0]))
            if node.op == "div":
                return self._quotient(function, *node.inputs)
            if node.op == "cast" and node.type == FLOAT and self._is_distance(node.inputs[0]):
                return self._float(function, node.inputs[0])
        return operation(node, [function.value(each) for each in node.inputs])

    def _quotient(self, function: _Function, left: int, right: int) -> str:
        """A quotient of scores, where its last bit does not count."""
        level = self.level(right)
        if level == function.level:
            return f"fa::ptx::divide({function.value(left)}, {function.value(right)})"
        inverse = _Member("float", (right,), lambda f: f"__frcp_rn({f.value(right)})")
        return f"({function.value(left)} * {function.member(level, f'inverse{right}', inverse)})"

    def _is_distance(self, index: int) -> bool:
        """Whether an integer is made of positions and numbers, by sums and absolute values."""
        node = self.nodes[index]
        if node.op in ("add", "sub", "neg", "abs"):
            return all(self._is_distance(each) for each in node.inputs)
        return node.type == INT and is_leaf(node)

    def _float(self, function: _Function, index: int) -> str:
        """A distance in floats, exact up to 2^24: that of the query and the key is given, and
        others are converted by query and by key."""
        node, level = self.nodes[index], self.level(index)
        if level == Level.ELEMENT:
            between = tuple(self.nodes[each].op for each in node.inputs)
            if node.op == "sub" and between in (("key", "query"), ("query", "key")):
                return "distance" if between[0] == "key" else "(-distance)"
            parts = [self._float(function, each) for each in node.inputs]
            return operation(node._replace(type=FLOAT), parts)
        text = f"static_cast<float>({function.value(index)})"
        if level == function.level:
            return text
        member = _Member("float", (index,), lambda f: f"static_cast<float>({f.value(index)})")
        return function.member(level, f"float{index}", member)

    def _address(
        self, function: _Function, memory: _Memory, slot: int, indices: tuple[int, ...]
    ) -> str:
        """Where an element lies. What its head, its query and its key add to the address is added
        by the functions of these."""
        levels = list(map(self.level, indices))
        at = {level: [d for d, own in enumerate(levels) if own == level] for level in Level}
        pointer, name = memory.pointer, memory.name

        def offset(f: _Function, dimension: int) -> str:
            size, stride = f"size{slot}[{dimension}]", f"{memory.stride}{slot}[{dimension}]"
            return f"{LIBRARY}offset({f.value(indices[dimension])}, args.{size}, args.{stride})"

        def terms(f: _Function, level: Level) -> str:
            return "".join(f" + {offset(f, dimension)}" for dimension in at[level])

        def roots(level: Level) -> tuple[int, ...]:
            return tuple(indices[d] for d in at[level])

        def of_head(f: _Function) -> str:
            if not at[Level.HEAD] or f.level == Level.HEAD:
                return f"args.{memory.base}{slot}{terms(f, Level.HEAD)}"
            member = _Member(pointer, roots(Level.HEAD), of_head)
            return f.member(Level.HEAD, f"plane{name}", member)

        def of_query(f: _Function) -> str:
            if not at[Level.QUERY] or f.level == Level.QUERY:
                return f"{of_head(f)}{terms(f, Level.QUERY)}"
            return f.member(
                Level.QUERY, f"row{name}", _Member(pointer, roots(Level.QUERY), of_query)
            )

        def of_key(f: _Function) -> str:
            if not at[Level.KEY] or f.level == Level.KEY:
                return terms(f, Level.KEY)
            member = _Member("long long", roots(Level.KEY), lambda f: f"0{of_key(f)}")
            return f" + {f.member(Level.KEY, f'column{name}', member)}"

        return f"{of_query(function)}{of_key(function)}{terms(function, Level.ELEMENT)}"

    def struct(self, name: str) -> str:
        """The whole text. What is computed first is printed last, when it is known what is used."""
        elements = [
            self._result("bool", "mask", self.program.mask, "true"),
            self._result("float", "score", self.program.score, "score"),
            self._result("float", "slope", self.derivative.slope, "1.f"),
            *self._gradients(),
            self._tilt(),
            *([] if self.bias is None else self._bias(self.nodes[self.bias])),
            *self._tiles(),
        ]
        parts = [self._part(level) for level in (Level.QUERY, Level.KEY, Level.HEAD)]
        structs = [self._fields(level) for level in _STRUCTS]
        body = [
            *self._constants(),
            struct_text(self.program),
            *structs,
            *reversed(parts),
            *elements,
        ]
        text = "\n".join(line for part in body for line in part.splitlines())
        return f"struct {name} {{\n{text}\n}};\n"

    def _constants(self) -> list[str]:
        slope = self.nodes[self.derivative.slope]
        values = {
            "kHasMask": self.program.mask is not None,
            "kHasScore": self.program.score is not None,
            "kSlopeIsOne": slope.op == "literal" and slope.detail == "1.0",
            "kGathers": bool(self.program.by_lanes),
            "kTilts": tilt_of(self.program) is not None,
            "kReadsQueries": self.bias is None and self._is_read(Level.QUERY),
            "kReadsKeys": self.bias is None and self._is_read(Level.KEY),
            "kBias": self.bias is not None,
        }
        return [f"static constexpr bool {n} = {str(v).lower()};" for n, v in values.items()]

    def _is_read(self, level: Level) -> bool:
        """Whether what is known at a level fits in a register, and takes a read of memory."""
        types = [member.type for member in self.members[level].values()]
        if types not in (["int"], ["float"]):
            return False
        (member,) = self.members[level].values()
        found = needed(self.nodes, member.roots)
        return any(self.nodes[n].op == "load" and self.level(n) == level for n in found)

    def _result(self, type_: str, name: str, result: int | None, default: str) -> str:
        function = _Function(self, Level.ELEMENT)
        function.print([] if result is None else [result])
        value = default if result is None else function.value(result)
        score, distance = ("", "") if name == "mask" else ("float score, ", _DISTANCE)
        head = f"{_QUALIFIERS} {type_} {name}({_AT}, {score}{_COORDINATES}{distance}) {{"
        return "\n".join([head, *function.lines, f"return {value};", "}"])

    def _tilt(self) -> str:
        """The function that gives the factor of the distance, if that is all that is added."""
        tilt = tilt_of(self.program)
        value = "0.f"
        if tilt is not None:
            factor = _Function(self, Level.ELEMENT)
            value = "1.f" if tilt.factor is None else factor.value(tilt.factor)
            value = value if tilt.sign > 0 else f"-{value}"
        return (
            f"{_QUALIFIERS} float tilt(const Args& args, const OfHead& at_head) {{\n"
            f"return {value};\n}}"
        )

    def _bias(self, load: Node) -> list[str]:
        """What unpacks an element of the bias, and which of its planes is that of a head."""
        slot = int(load.detail or 0)
        element = f"{unpack(self.program.tensors[slot].dtype)}(pair, e)"
        return [
            f"{_QUALIFIERS} float bias(fa::u32 pair, int e) {{\nreturn {element};\n}}",
            *self._plane("plane", load, "plane({0}, args.size{1}[{2}], args.stride{1}[{2}])"),
        ]

    def _plane(self, name: str, load: Node, index: str) -> list[str]:
        """What says which plane of a tensor is that of a head. `index` is the text of one of its
        indices, made of the value that is read at, the slot and the dimension."""
        function = _Function(self, Level.HEAD)
        function.print(load.inputs[:-2])
        planes = [
            LIBRARY + index.format(function.value(each), load.detail, d)
            for d, each in enumerate(load.inputs[:-2])
        ]
        inner, outer = [*reversed(planes), "0", "0"][:2]
        return [
            f"{_QUALIFIERS} {LIBRARY}Plane {name}({_PARAMETERS[Level.HEAD]}) {{",
            *function.lines,
            f"return {{{inner}, {outer}}};\n}}",
        ]

    def _tiles(self) -> list[str]:
        """The gradient that leaves as tiles of dS, and which plane of it is that of a head."""
        load = bias_load(self.program)
        if self.program.by_tiles is None or load is None:
            return []
        plane = self._plane("gradient_plane", self.nodes[load], "within({0}, args.size{1}[{2}])")
        gradient = gradient_text(self.program, self.program.by_tiles.slot)
        head = f"{_QUALIFIERS} {LIBRARY}Gradient gradient(const Args& args)"
        return [*plane, f"{head} {{\nreturn {gradient};\n}}"]

    def _gradients(self) -> list[str]:
        """The derivatives by elements whose gradients are wanted."""
        how = dict(self.program.by_lanes)
        loads = [each for each in self.derivative.loads if each.slot in how]
        kept = [each for each in loads if self.program.depends[each.value] & SCORE]
        count = f"static constexpr int kKeptLoads = {len(kept)};"
        if not loads:
            return [count]
        texts = [
            self._load(number, each, how[each.slot], kept.index(each) if each in kept else -1)
            for number, each in enumerate(loads)
        ]
        names = ", ".join(f"Load{number}" for number in range(len(loads)))
        return [count, *texts, f"using Loads = {LIBRARY}List<{names}>;"]

    def _load(self, number: int, load: LoadGradient, how: How, kept: int) -> str:
        """The derivative by an element that is read, and what adds a number to its gradient."""
        slot, indices, value = load
        dtype = self.program.tensors[slot].dtype
        element = ELEMENTS[dtype] if how is How.STORE else "float"
        gradient = _Memory(f"{element}*", "sum", "sum_stride", f"_of_sum{number}")
        derivative, place = _Function(self, Level.ELEMENT), _Function(self, Level.ELEMENT)
        derivative.print([value])
        place.print(indices)
        digits = f", args.digits{slot} + {DIGITS} * (to - args.sum{slot})"
        add = f"{LIBRARY}{store(dtype) if how is How.STORE else 'add'}"
        return "\n".join(
            (
                f"struct Load{number} {{",
                f"using Element = {element};",
                f"static constexpr auto kShared = {LIBRARY}Shared::k{self._shared(indices)};",
                f"static constexpr bool kStores = {str(how is How.STORE).lower()};",
                f"static constexpr int kKept = {kept};",
                f"{_QUALIFIERS} float value({_AT}, float score, {_COORDINATES}{_DISTANCE}) {{",
                *derivative.lines,
                f"return {derivative.value(value)};",
                "}",
                f"{_QUALIFIERS} Element* place({_AT}, {_COORDINATES}) {{",
                *place.lines,
                f"return {self._address(place, gradient, slot, indices)};",
                "}",
                f"{_QUALIFIERS} void add(const Args& args, Element* to, float x) {{",
                f"{add}(to, x{digits if how is How.EXACT else ''});",
                "}",
                "};",
            )
        )

    def _shared(self, indices: tuple[int, ...]) -> str:
        """Which scores an element of a gradient has terms of, as `Shared` of HEADER."""
        levels = {self.level(each) for each in indices} - {Level.HEAD}
        if levels == {Level.QUERY, Level.KEY}:
            return "Pair"
        return max(levels, default=Level.HEAD).name.title()

    def _part(self, level: Level) -> str:
        function = _Function(self, level)
        members = self.members[level]
        function.print([root for member in members.values() for root in member.roots])
        values = [member.make(function) for member in members.values()]
        name = f"of_{level.name.lower()}"
        head = f"{_QUALIFIERS} {_STRUCTS[level]} {name}({_PARAMETERS[level]}) {{"
        return "\n".join([head, *function.lines, f"return {{{', '.join(values)}}};", "}"])

    def _fields(self, level: Level) -> str:
        fields = " ".join(f"{member.type} {name};" for name, member in self.members[level].items())
        return f"struct {_STRUCTS[level]} {{ {fields} }};"

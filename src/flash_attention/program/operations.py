# SPDX-License-Identifier: Apache-2.0
"""What functions can do with symbols, by the names of Python's operators and of torch."""

from __future__ import annotations

import math
from typing import Any

import torch

from flash_attention.errors import quoted
from flash_attention.program.capture import Capture, Operation, Symbol
from flash_attention.program.nodes import BOOL, DTYPES, FLOAT, INT, Type
from flash_attention.program.refusal import refuse

_MOST_FACTORS = 8  # of a power with an integer exponent
_TWO_ARGUMENTS = "max and min of one value are it; write torch.maximum(x, y) or torch.minimum(x, y)"


def _arithmetic(op: str, of_bools: str = "") -> Operation:
    def apply(capture: Capture, input: Any, other: Any, *, alpha: Any = 1) -> Symbol:
        if alpha != 1:
            other = multiply(capture, other, alpha)
        nodes = capture.together(input, other, least=BOOL if of_bools else INT)
        are_bools = capture.type_of(nodes[0]) == BOOL
        return capture.symbol(capture.arithmetic(of_bools if are_bools else op, *nodes))

    return apply


multiply = _arithmetic("mul", of_bools="and")  # as torch multiplies and adds bools
subtract = _arithmetic("sub")


def _extreme(op: str) -> Operation:
    def apply(capture: Capture, input: Any, *other: Any) -> Symbol:
        if len(other) != 1:
            refuse(f"torch.{op} is called with one value", _TWO_ARGUMENTS)
        return capture.symbol(capture.arithmetic(op, *capture.together(input, *other, least=INT)))

    return apply


def _of_float(op: str) -> Operation:
    def apply(capture: Capture, input: Any) -> Symbol:
        return capture.symbol(capture.arithmetic(op, *capture.together(input, least=FLOAT)))

    return apply


exponential, exponential_2, logarithm, root = map(_of_float, ("exp", "exp2", "log", "sqrt"))
floor_of, sigmoid = _of_float("floor"), _of_float("sigmoid")


def _of_number(op: str) -> Operation:
    def apply(capture: Capture, input: Any) -> Symbol:
        return capture.symbol(capture.arithmetic(op, *capture.together(input, least=INT)))

    return apply


negative = _of_number("neg")


def _compare(op: str, *, swapped: bool = False) -> Operation:
    def apply(capture: Capture, input: Any, other: Any) -> Symbol:
        left, right = capture.together(input, other, least=INT)
        return capture.symbol(capture.compare(op, *((right, left) if swapped else (left, right))))

    return apply


less, less_equal, equal = _compare("lt"), _compare("le"), _compare("eq")
greater = _compare("lt", swapped=True)


def _bits(op: str) -> Operation:
    def apply(capture: Capture, input: Any, *other: Any) -> Symbol:
        nodes = capture.together(input, *other)
        if capture.type_of(nodes[0]) == FLOAT:
            refuse(
                "& | ^ ~ is applied to a float",
                "it takes bools and integers; comparisons need parentheses: (a < b) & (c < d)",
            )
        return capture.symbol(capture.arithmetic(op, *nodes))

    return apply


def _logical(op: str) -> Operation:
    def apply(capture: Capture, *values: Any) -> Symbol:
        return capture.symbol(capture.arithmetic(op, *(_as(capture, v, BOOL) for v in values)))

    return apply


def _shift(op: str) -> Operation:
    def apply(capture: Capture, input: Any, other: Any) -> Symbol:
        nodes = capture.together(input, other, least=INT)
        if capture.type_of(nodes[0]) != INT:
            refuse("a float is shifted", "<< and >> take integers")
        return capture.symbol(capture.arithmetic(op, *nodes))

    return apply


def _as(capture: Capture, value: Any, type_: Type) -> int:
    return capture.convert(capture.settle(value), type_)


def divide(capture: Capture, input: Any, other: Any, *, rounding_mode: str | None = None) -> Symbol:
    """True division, or floor division if the rounding mode says so."""
    if rounding_mode == "floor":
        return floor_divide(capture, input, other)
    if rounding_mode is not None:
        refuse(f"rounding_mode is {rounding_mode!r}", 'use None or "floor"')
    left, right = capture.together(input, other, least=FLOAT)
    return capture.symbol(capture.arithmetic("div", left, right))


def floor_divide(capture: Capture, input: Any, other: Any) -> Symbol:
    """Division rounded down, as Python's //."""
    _check_divisor(capture, other)
    return capture.symbol(
        capture.arithmetic("floordiv", *capture.together(input, other, least=INT))
    )


def remainder(capture: Capture, input: Any, other: Any) -> Symbol:
    """What floor division leaves, as Python's %: it has the sign of the divisor."""
    _check_divisor(capture, other)
    left, right = capture.together(input, other, least=INT)
    if capture.type_of(left) == INT:
        return capture.symbol(capture.arithmetic("mod", left, right))
    apply = capture.arithmetic
    rest = apply("sub", left, apply("mul", apply("floordiv", left, right), right))
    if capture.nodes[right].op == "number":  # which is finite
        return capture.symbol(rest)
    opposite = capture.compare("lt", apply("mul", left, right), capture.literal(0.0))
    beyond = apply("add", apply("select", opposite, right, left), apply("sub", left, left))
    infinite = capture.compare("eq", apply("abs", right), capture.literal(math.inf))
    return capture.symbol(apply("select", infinite, beyond, rest))


def _check_divisor(capture: Capture, other: Any) -> None:
    divisor = capture.settle(other)
    if not isinstance(divisor, Symbol) and divisor == 0:
        refuse("a divisor of // or % is 0", "use another number")


def power(capture: Capture, input: Any, exponent: Any) -> Symbol:
    """x ** n for small integers n, x ** 0.5, and c ** x for positive numbers c."""
    base, by = capture.settle(input), capture.settle(exponent)
    if isinstance(base, Symbol) and not isinstance(by, Symbol):
        if by == 0.5:
            return root(capture, base)  # type: ignore[no-any-return]
        if 1 <= by <= _MOST_FACTORS and by == int(by):
            (factor,) = capture.together(base, least=FLOAT if isinstance(by, float) else INT)
            product = factor
            for _ in range(int(by) - 1):
                product = capture.arithmetic("mul", product, factor)
            return capture.symbol(product)
    elif (
        isinstance(by, Symbol)
        and not isinstance(base, Symbol)
        and FLOAT in (by.type, capture.type_of_operand(base))
        and 0 < base < math.inf
    ):
        scaled = multiply(capture, by, math.log2(base))
        return exponential_2(capture, scaled)  # type: ignore[no-any-return]
    refuse(
        "a power is taken of another kind than programs have",
        f"exponents can be 0.5 and integers from 1 to {_MOST_FACTORS}, or the base a positive"
        " number and the exponent a float, as in 2.0 ** x; write torch.exp(y * torch.log(x)) for"
        " others",
    )


def where(capture: Capture, condition: Any, input: Any, other: Any) -> Symbol:
    """One of two values."""
    settled = capture.settle(condition)
    if capture.type_of_operand(settled) != BOOL:
        refuse("the condition of torch.where is no bool", "compare it, such as x != 0")
    chosen = capture.convert(settled, BOOL)
    return capture.symbol(capture.arithmetic("select", chosen, *capture.together(input, other)))


def clamp(capture: Capture, input: Any, min: Any = None, max: Any = None) -> Symbol:
    """A value within limits; its derivative at a limit is 1, as torch's."""
    value = input
    for limit, beyond, op in ((min, less, "max"), (max, greater, "min")):
        if limit is None:
            continue
        number, bound = capture.together(value, limit, least=INT)
        if capture.type_of(number) == INT:
            value = capture.symbol(capture.arithmetic(op, number, bound))
        else:
            value, bounding = capture.symbol(number), capture.symbol(bound)
            value = where(capture, beyond(capture, value, bounding), bounding, value)
    return value  # type: ignore[no-any-return]


def _clamp_least(capture: Capture, input: Any, min: Any) -> Symbol:
    return clamp(capture, input, min)


def _clamp_most(capture: Capture, input: Any, max: Any) -> Symbol:
    return clamp(capture, input, None, max)


def relu(capture: Capture, input: Any, inplace: bool = False) -> Symbol:
    """0 below 0."""
    (value,) = capture.together(input, least=FLOAT)
    zero = capture.literal(0.0)
    below = capture.compare("le", value, zero)
    return capture.symbol(capture.arithmetic("select", below, zero, value))


def silu(capture: Capture, input: Any, inplace: bool = False) -> Symbol:
    """x sigmoid(x)."""
    return multiply(capture, input, sigmoid(capture, input))  # type: ignore[no-any-return]


def sign(capture: Capture, input: Any) -> Symbol:
    """-1, 0 or 1."""
    (value,) = capture.together(input, least=INT)
    zero = capture.cast(capture.literal(0.0), capture.type_of(value))
    above, below = (
        capture.cast(capture.compare("lt", *pair), capture.type_of(value))
        for pair in ((zero, value), (value, zero))
    )
    return capture.symbol(capture.arithmetic("sub", above, below))


def convert(capture: Capture, input: Any, *args: Any, **kwargs: Any) -> Symbol:
    """`.to`: only the dtype counts, as bool, int or float. The device and the width do not."""
    given = (*args, *kwargs.values())
    types = [
        each if isinstance(each, torch.dtype) else each.dtype
        for each in given
        if isinstance(each, torch.dtype | torch.Tensor | Symbol)
    ]
    if not types:
        return capture.symbol(capture.together(input)[0])
    return capture.symbol(_as(capture, input, _type_of(types[0])))


def _to(type_: Type) -> Operation:
    return lambda capture, input: capture.symbol(_as(capture, input, type_))


def _type_of(dtype: torch.dtype) -> Type:
    if dtype not in DTYPES:
        known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
        refuse(f"a value is converted to {dtype}", f"it can be {known}")
    return DTYPES[dtype]


def _filled(like: Symbol, value: Any, dtype: torch.dtype | None) -> Symbol:
    capture = like.capture
    return capture.symbol(_as(capture, value, like.type if dtype is None else _type_of(dtype)))


def _full_like(fill: float | None) -> Operation:
    def apply(capture: Capture, input: Any, *value: Any, dtype: Any = None, **_: Any) -> Symbol:
        (filling,) = value or (capture.symbol(capture.literal(fill or 0.0)),)
        return _filled(input, filling, dtype)

    return apply


def _new(fill: float | None) -> Operation:
    def apply(
        capture: Capture, input: Any, size: Any = (), *value: Any, dtype: Any = None, **others: Any
    ) -> Symbol:
        if tuple(size):
            refuse(f"a tensor of size {quoted(size)} is made", "the size must be ()")
        given = value or ((others["fill_value"],) if "fill_value" in others else ())
        (filling,) = given or (capture.symbol(capture.literal(fill or 0.0)),)
        return _filled(input, filling, dtype)

    return apply


def constant(capture: Capture, value: bool | int | float, dtype: torch.dtype | None) -> Symbol:
    """`torch.tensor` of a number."""
    type_ = capture.type_of_operand(value) if dtype is None else _type_of(dtype)
    return capture.symbol(capture.convert(value, type_))


def _masked_fill(capture: Capture, input: Any, mask: Any, value: Any) -> Symbol:
    return where(capture, mask, value, input)


def _square(capture: Capture, input: Any) -> Symbol:
    return multiply(capture, input, input)  # type: ignore[no-any-return]


def _literal(capture: Capture, value: float) -> Symbol:
    return capture.symbol(capture.literal(value))


OPERATIONS: dict[str, Operation] = {
    "pos": lambda capture, input: capture.symbol(capture.together(input, least=INT)[0]),
    "floor_divide": floor_divide,
    "floordiv": floor_divide,
    "pow": power,
    "where": where,
    "masked_fill": _masked_fill,
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": _clamp_least,
    "clamp_max": _clamp_most,
    "relu": relu,
    "sign": sign,
    "square": _square,
    "rsqrt": lambda c, input: divide(c, _literal(c, 1.0), root(c, input)),
    "reciprocal": lambda c, input: divide(c, _literal(c, 1.0), input),
    "log2": lambda c, input: multiply(c, logarithm(c, input), _literal(c, 1 / math.log(2))),
    "ceil": lambda c, input: negative(c, floor_of(c, negative(c, input))),
    "tanh": _of_float("tanh"),
    "approx::tanh": _of_float("tanh"),  # attention-gym's
    "sigmoid": sigmoid,
    "silu": silu,
    "exp": exponential,
    "exp2": exponential_2,
    "log": logarithm,
    "sqrt": root,
    "floor": floor_of,
    "logical_not": _logical("not"),
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "lshift": _shift("shl"),
    "rshift": _shift("shr"),
    "bitwise_left_shift": _shift("shl"),
    "bitwise_right_shift": _shift("shr"),
    "to": convert,
    "type": convert,
    "type_as": convert,
    "bool": _to(BOOL),
    **dict.fromkeys(("int", "long", "short"), _to(INT)),
    **dict.fromkeys(("float", "double", "half", "bfloat16"), _to(FLOAT)),
    "zeros_like": _full_like(0.0),
    "ones_like": _full_like(1.0),
    "full_like": _full_like(None),
    "new_zeros": _new(0.0),
    "new_ones": _new(1.0),
    "new_full": _new(None),
    "add": _arithmetic("add", of_bools="or"),
    **dict.fromkeys(("sub", "subtract"), subtract),
    **dict.fromkeys(("mul", "multiply"), multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), divide),
    **dict.fromkeys(("remainder", "mod"), remainder),
    **dict.fromkeys(("neg", "negative"), negative),
    **dict.fromkeys(("abs", "absolute"), _of_number("abs")),
    **dict.fromkeys(("maximum", "max"), _extreme("max")),
    **dict.fromkeys(("minimum", "min"), _extreme("min")),
    **dict.fromkeys(("lt", "less"), less),
    **dict.fromkeys(("le", "less_equal"), less_equal),
    **dict.fromkeys(("gt", "greater"), greater),
    **dict.fromkeys(("ge", "greater_equal"), _compare("le", swapped=True)),
    **dict.fromkeys(("eq",), equal),
    **dict.fromkeys(("ne", "not_equal"), _compare("ne")),
    **dict.fromkeys(("and", "bitwise_and"), _bits("and")),
    **dict.fromkeys(("or", "bitwise_or"), _bits("or")),
    **dict.fromkeys(("xor", "bitwise_xor"), _bits("xor")),
    **dict.fromkeys(("invert", "bitwise_not"), _bits("not")),
}

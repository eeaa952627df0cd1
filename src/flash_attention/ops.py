# SPDX-License-Identifier: Apache-2.0
"""`attention` as operators of torch, so that torch.compile and torch.export see one node.

`torch.ops.flash_attention.dense` takes (batch, seq, heads, d) tensors,
`torch.ops.flash_attention.varlen` packed ones. Both return (out, lse, max) in new, contiguous
tensors and change nothing; max is empty without `return_max`. A side of the window that is -1 has
no limit. `config` is the short form of a kernel config, a rung as in "rung:5", or None to have one
selected. Autograd differentiates them with `dense_backward` and `varlen_backward`, which return
(dq, dk, dv, dsinks). A gradient that is not wanted is an empty tensor.

`attention` calls them while it is traced (by torch.compile, torch.export, make_fx or
torch.jit.trace), while a dispatch mode of torch such as FlopCounterMode is active, and for tensors
without memory: fake tensors, meta tensors and those in transforms of torch.func. Other calls avoid
the overhead of an operator.

FLOP are counted as torch counts them for scaled_dot_product_attention: two products of all queries
with all keys, whatever the mask, and five in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensor

from flash_attention.call.backward_call import BackwardCall, Gradients, Wanted
from flash_attention.call.call import DESCALES, Call
from flash_attention.call.checks import check_call, check_dense, check_operands
from flash_attention.call.lengths import check_lengths, count_pairs
from flash_attention.call.options import check_options, check_switch
from flash_attention.call.results import new_gradient, output_dtype, precision_of_lse, results
from flash_attention.call.schema import (
    ASKED,
    DIFFERENTIABLE,
    OF_GRADIENTS,
    ONLY_FORWARD,
    PACKED,
    SHARED,
    TENSORS,
    arguments_of,
    keywords_of,
)
from flash_attention.call.tensors import (
    MAX_ROWS,
    OUTPUT,
    TensorView,
    check_no_tangent,
    check_output_kind,
)
from flash_attention.errors import UnsupportedError
from flash_attention.families.given import GivenConfig, read_config
from flash_attention.families.gradients import check_differentiable
from flash_attention.families.passes import Pass
from flash_attention.families.readable import backward_call_of
from flash_attention.families.registry import check_pass
from flash_attention.flop_counter import count_flop
from flash_attention.kernel_configs import as_kernel_config
from flash_attention.launch.compute import compute, compute_gradients
from flash_attention.launch.preparation import Outputs

_is_compiling = torch.compiler.is_compiling


class BackwardOptions(NamedTuple):
    """How the backward pass of a call runs."""

    config: GivenConfig | None
    deterministic: bool

    @classmethod
    def of(cls, config: GivenConfig | None, deterministic: bool) -> BackwardOptions:
        """Check the options as far as torch.compile follows."""
        if not _is_compiling():
            check_switch("deterministic", deterministic)
            if config is not None:
                check_pass(as_kernel_config(config, pass_=Pass.BACKWARD), Pass.BACKWARD)
        return cls(config, bool(deterministic))


NO_BACKWARD_OPTIONS = BackwardOptions(None, deterministic=False)


class _Operators:
    """An operator that computes `attention`, and the one that computes its gradients."""

    def __init__(self, name: str, lengths: dict[str, str]) -> None:
        self.forward_arguments = TENSORS | lengths | ASKED
        own = {n: t for n, t in self.forward_arguments.items() if n not in ONLY_FORWARD}
        self.backward_arguments = OF_GRADIENTS | own
        self.forward = _operator(name, self.forward_arguments, 3, _compute, _empty_results)
        of_gradients = _compute_gradients, _empty_gradients
        self.backward = _operator(f"{name}_backward", self.backward_arguments, 4, *of_gradients)
        self.forward.register_autograd(self._differentiate, setup_context=self._save)
        self.backward.register_autograd(refuse_second_gradient)

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        given = dict(zip(self.forward_arguments, inputs, strict=True))
        check_differentiable(Call(*inputs[:3])._replace(block_table=given["block_table"]))
        given["out"], given["lse"], maxima = output
        ctx.mark_non_differentiable(maxima)
        given = {name: given[name] for name in self.backward_arguments if name in given}
        captured = given.pop("captured", None)
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        ctx.save_for_backward(*tensors.values(), *(captured or ()))
        ctx.saved_names = tuple(tensors)
        ctx.options = {name: value for name, value in given.items() if name not in tensors}
        ctx.set_materialize_grads(False)

    def _differentiate(
        self, ctx: Any, do: Tensor | None, dlse: Tensor | None, of_maxima: None
    ) -> tuple[Any, ...]:
        given = dict(zip(ctx.saved_names, ctx.saved_tensors, strict=False)) | ctx.options
        if given.get("program") is not None:
            given["captured"] = ctx.saved_tensors[len(ctx.saved_names) :]
        # torch leaves out the last arguments if they have their default value.
        needed = dict(zip(self.forward_arguments, ctx.needs_input_grad, strict=False))
        wanted = [needed.get(name, False) for name in DIFFERENTIABLE]
        do = torch.zeros_like(given["out"]) if do is None else do
        found = self.backward(do=do, dlse=dlse, wanted=wanted, **given)
        gradients = dict(zip(DIFFERENTIABLE, found, strict=True))
        return tuple(
            [None] * len(need) if isinstance(need, list) else gradients[name] if need else None
            for name, need in needed.items()
        )


def _operator(
    name: str,
    declared: dict[str, str],
    results: int,
    computed: Callable[..., Any],
    empty: Callable[..., Any],
) -> CustomOpDef:
    """Make an operator that passes the declared arguments on by name."""

    def by_name(function: Callable[..., Any]) -> Callable[..., Any]:
        # torch does not pass arguments that have their default value.
        return lambda *values, **named: function(
            **dict(zip(declared, values, strict=False)), **named
        )

    schema = f"({', '.join(declared.values())}) -> ({', '.join(['Tensor'] * results)})"
    operator = torch.library.custom_op(name, by_name(computed), mutates_args=(), schema=schema)
    operator.register_fake(by_name(empty))
    operator.register_vmap(partial(_for_each, operator))
    return operator


def _for_each(
    operator: CustomOpDef, info: Any, in_dims: tuple[Any, ...], *values: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Call an operator for each element of a dimension that torch.vmap hides from it."""

    def element(value: Any, dim: Any, i: int) -> Any:
        if isinstance(dim, list):
            return [element(*each, i) for each in zip(value, dim, strict=True)]
        return value.select(dim, i) if isinstance(value, Tensor) and dim is not None else value

    found = [
        operator(*(element(*each, i) for each in zip(values, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    stacked = tuple(map(torch.stack, zip(*found, strict=True)))
    return stacked, (0,) * len(stacked)


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    config: str | None = None,
    backward_config: str | None = None,
    deterministic: bool = False,
    **asked: Any,
) -> tuple[Tensor, ...]:
    call = Call(q, k, v, _new_output(q, v), **keywords_of(asked), return_lse=True)
    result, lse, *maxima = compute(call, config)
    return result, lse, *(maxima or [lse.new_empty(0)])


def _empty_results(
    q: Tensor, k: Tensor, v: Tensor, *, return_max: bool = False, **asked: object
) -> tuple[Tensor, ...]:
    """Allocate results without values, for tracing."""
    *batch, rows, heads, _ = q.shape
    lse = q.new_empty((*batch, heads, rows), dtype=precision_of_lse(q.dtype))
    return _new_output(q, v), lse, lse.new_empty(heads if return_max else 0)


def _new_output(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=output_dtype(q))


def _compute_gradients(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    wanted: list[bool],
    *,
    dlse: Tensor | None = None,
    backward_config: str | None = None,
    deterministic: bool = False,
    **asked: Any,
) -> tuple[Tensor, ...]:
    call = Call(q, k, v, out, **keywords_of(asked), return_lse=True)
    backward = backward_call_of(do, call, lse, dlse, Wanted(*wanted), deterministic)
    found = compute_gradients(backward, backward_config)
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in found)


def _empty_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    wanted: list[bool],
    *,
    sinks: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, ...]:
    return tuple(
        new_gradient(tensor) if want and tensor is not None else q.new_empty(0)
        for tensor, want in zip((q, k, v, sinks), wanted, strict=True)
    )


def refuse_second_gradient(ctx: Any, *gradients: Tensor | None) -> None:
    """Raise UnsupportedError, as the gradient of a gradient."""
    raise UnsupportedError(
        "a gradient of attention was differentiated, and only attention itself is differentiable;"
        " for second derivatives call torch's scaled_dot_product_attention under"
        " sdpa_kernel(SDPBackend.MATH)"
    )


_dense = _Operators("flash_attention::dense", {})
_varlen = _Operators("flash_attention::varlen", PACKED)


def _flop(operators: _Operators) -> None:
    def of_forward(*values: Any, **named: Any) -> int:
        asked = dict(zip(operators.forward_arguments, values, strict=False)) | named
        return count_pairs(asked) * int(2 * (asked["q"].shape[-1] + asked["v"].shape[-1]))

    def of_backward(*values: Any, **named: Any) -> int:
        asked = dict(zip(operators.backward_arguments, values, strict=False)) | named
        return count_pairs(asked) * int(2 * (3 * asked["q"].shape[-1] + 2 * asked["v"].shape[-1]))

    count_flop(operators.forward._opoverload.overloadpacket, of_forward)
    count_flop(operators.backward._opoverload.overloadpacket, of_backward)


_flop(_dense)
_flop(_varlen)


_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_is_tracing: Callable[[], bool] = torch._C._is_tracing


def is_traced(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch has to see a call as an operator. This runs in every call."""
    if _is_compiling() or _modes() or _is_tracing():
        return True
    return not (type(q) is type(k) is type(v) is Tensor) and _any_fake(q, k, v)


def lacks_memory(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether tensors have no memory that a kernel could access."""
    if torch._C._functorch.peek_interpreter_stack() is not None or _any_fake(q, k, v):
        return True
    return all(getattr(t, "is_meta", False) for t in (q, k, v))


def _any_fake(*tensors: Tensor) -> bool:
    return any(isinstance(t, FakeTensor) for t in tensors)


def traced(
    call: Call, config: GivenConfig | None, validate: bool, backward: BackwardOptions
) -> Outputs:
    """Compute `attention` by calling an operator, which torch can trace."""
    q, k, v, out = call[:4]
    if not _is_compiling():  # torch.compile does not follow these
        check_options(call)
        check_switch("validate", validate)
    check_operands(call)
    if validate:
        _validate(call, config)
    if out is not None:
        check_dense(OUTPUT, out)
        check_output_kind(*(_shape_of(n, t) for n, t in ((OUTPUT, out), ("q", q), ("v", v))))
    if torch.is_grad_enabled() and call.needs_grad():
        check_differentiable(call)
    else:
        check_no_tangent(call)
    operators, asked = _asked(call)
    result, lse, maxima = operators.forward(
        *(q, k, v),
        **asked,
        block_table=call.block_table,
        split_keys=call.split_keys,
        batch_invariant=bool(call.batch_invariant),
        return_max=bool(call.return_max),
        **{name: getattr(call, name) for name in DESCALES},
        config=_written(config),
        backward_config=_written(backward.config, Pass.BACKWARD),
        deterministic=backward.deterministic,
    )
    result = result if out is None else out.copy_(result)
    return results(result, lse if call.return_lse else None, maxima if call.return_max else None)


def traced_gradients(backward: BackwardCall, config: GivenConfig | None) -> Gradients:
    """Compute gradients by calling an operator, which torch can trace and whose results autograd
    knows not to be differentiable."""
    operators, asked = _asked(backward.call)
    q, k, v, out = backward.call[:4]
    found = operators.backward(
        *(backward.do, backward.dlse, out, backward.lse, list(backward.wanted), q, k, v),
        **asked,
        backward_config=_written(config, Pass.BACKWARD),
        deterministic=backward.deterministic,
    )
    gradients = zip(found, backward.wanted, strict=True)
    return Gradients(*(gradient if wanted else None for gradient, wanted in gradients))


def _asked(call: Call) -> tuple[_Operators, dict[str, Any]]:
    """Return the operators for a call, and the arguments that both of them take."""
    asked: dict[str, Any] = {name: getattr(call, name) for name in SHARED}
    asked |= arguments_of(call.function, call.q.device)
    left, right = call.window or (-1, -1)
    asked["window_left"] = -1 if left is None else min(left, MAX_ROWS)
    asked["window_right"] = -1 if right is None else min(right, MAX_ROWS)
    packed = {name: getattr(call, name) for name in PACKED}
    if all(value is None for value in packed.values()):
        return _dense, asked
    return _varlen, packed | asked


def _written(config: GivenConfig | None, pass_: Pass = Pass.FORWARD) -> str | None:
    """Return a config of a pass as text, which is all that an operator takes."""
    if config is None or isinstance(config, str):
        return config
    return read_config(config, pass_).short_form()


def _shape_of(name: str, tensor: Tensor) -> TensorView:
    """Describe a tensor that may have no memory."""
    return TensorView(name, tuple(tensor.shape), (), tensor.dtype, tensor.device)


def _validate(call: Call, config: GivenConfig | None) -> None:
    """Check the lengths of a call. On the CPU they are checked anyway."""
    if _is_compiling() or _is_tracing() or lacks_memory(*call[:3]):
        raise UnsupportedError(
            "validate=True reads values of cu_seqlens, seqused_k and block_table, which have none"
            " while a function is compiled; validate outside of it"
        )
    if config is not None or not call.q.is_cpu:
        problem, _ = check_call(call)
        check_lengths(problem, call)

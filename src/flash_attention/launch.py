# SPDX-License-Identifier: Apache-2.0
"""Launch plans: all that follows from a config, shapes and strides, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from flash_attention import checks, driver
from flash_attention.arch import DEFAULT_ARCH, Arch
from flash_attention.checks import TensorView
from flash_attention.dispatch import device_arch, get_kernel
from flash_attention.kernel_args import ForwardKernelArgs, Strides
from flash_attention.kernel_configs import FlashForwardKernelConfig
from flash_attention.overlap import may_overlap
from flash_attention.problem import Geometry, Problem

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction

CPU = -1  # device index of tensors whose kernel is emulated
MAX_PLANS = 8192  # a program with ever new shapes starts over instead of growing


def _stream_of_object(device_index: int) -> int:
    handle: int = torch.cuda.current_stream(device_index).cuda_stream
    return handle


# The raw handle costs a tenth of a microsecond, the stream object several.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _stream_of_object
)


class LaunchPlan:
    """One kernel at one set of shapes and strides; tensors come and go."""

    def __init__(
        self,
        config: FlashForwardKernelConfig,
        views: Sequence[TensorView],
        device_index: int,
    ) -> None:
        self.config = config
        self.views = views  # of q, k, v and o
        self.problem = Problem.from_tensors(*views[:2])
        self.geometry = Geometry.of(config, self.problem)
        self.device_index = device_index
        self._shape = (*self.geometry.grid, self.geometry.block, 1, 1, self.geometry.smem_bytes)
        self._template = bytes(packed_args(self.problem, views))
        self._spans = tuple(view.layout.span for view in views)
        self._function: CUfunction | None = None

    def load(self) -> CUfunction:
        """The kernel's handle, ready on the plan's device; the first use may compile."""
        if self._function is None:
            function = get_kernel(self.config, device_arch(self.device_index)).function
            with torch.cuda.device(self.device_index):
                driver.ready_kernel(function, self.device_index, self.geometry.smem_bytes)
            self._function = function
        return self._function

    def bind(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None) -> ForwardKernelArgs:
        """Check what may change from call to call, then fill in the addresses.

        The address of an output that is yet to be allocated stays zero.
        """
        args = ForwardKernelArgs.from_buffer_copy(self._template)
        args.q = q_pointer = q.data_ptr()
        args.k = k_pointer = k.data_ptr()
        args.v = v_pointer = v.data_ptr()
        args.o = o_pointer = 0 if o is None else o.data_ptr()
        if (q_pointer | k_pointer | v_pointer | o_pointer) % checks.ALIGNMENT:
            checks.check_pointers(_views(q, k, v) if o is None else _views(q, k, v, o))
        if o is not None:
            self._check_overlap(o_pointer, (q_pointer, k_pointer, v_pointer), q, k, v, o)
        if torch.is_grad_enabled():
            checks.check_no_grad(
                q.requires_grad
                or k.requires_grad
                or v.requires_grad
                or (o is not None and o.requires_grad)
            )
        return args

    def _check_overlap(self, o_pointer: int, pointers: tuple[int, ...], *tensors: Tensor) -> None:
        o_span = self._spans[3]
        for pointer, span, view in zip(pointers, self._spans, self.views, strict=False):
            apart = o_pointer + o_span <= pointer or pointer + span <= o_pointer
            if not apart and may_overlap(o_pointer - pointer, view.layout, self.views[3].layout):
                *inputs, o = _views(*tensors)
                checks.check_no_overlap(o, inputs)

    def launch(self, args: ForwardKernelArgs) -> None:
        """Queue the kernel on the current stream of the plan's device."""
        index = self.device_index
        if torch.cuda.current_device() != index:
            with torch.cuda.device(index):
                return self.launch(args)
        driver.launch_kernel(self.load(), self._shape, args, current_stream(index), index)


def packed_args(problem: Problem, views: Sequence[TensorView]) -> ForwardKernelArgs:
    """The kernel's arguments but for the four addresses."""
    args = ForwardKernelArgs(
        seq_len_q=problem.seq_q, seq_len_k=problem.seq_k, softmax_scale=problem.softmax_scale
    )
    for name, view in zip("qkvo", views, strict=True):
        setattr(args, f"{name}_stride", Strides(*view.strides[:3]))
    return args


_plans: dict[tuple[object, ...], LaunchPlan] = {}


def plan_for(
    config: FlashForwardKernelConfig, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None
) -> LaunchPlan:
    """The plan of a call: a dictionary hit, or every check and a new plan. Compiles nothing."""
    try:
        key = (
            config,
            *(q.shape, q.stride(), q.dtype, q.device),
            *(k.shape, k.stride(), k.dtype, k.device),
            *(v.shape, v.stride(), v.dtype, v.device),
            *(() if o is None else (o.shape, o.stride(), o.dtype, o.device)),
        )
        plan = _plans.get(key)
    except (AttributeError, RuntimeError, TypeError) as error:
        _explain(error, config, *((q, k, v) if o is None else (q, k, v, o)))
    if plan is None:
        plan = new_plan(config, q, k, v, o)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def new_plan(
    config: FlashForwardKernelConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    arch: Arch | None = None,
) -> LaunchPlan:
    """Every check and a new plan; `arch` is that of the tensors' device unless given."""
    checks.check_config_type(config)
    inputs = _views(q, k, v)
    checks.check_inputs(*inputs)
    if o is None:
        output = TensorView.of("o", torch.empty_like(q, device="meta"))
        output = TensorView("o", output.shape, output.strides, q.dtype, q.device)
    else:
        output = TensorView.of("o", o)
        checks.check_given_output(output, inputs[0])
    device_index: int = q.get_device()
    if arch is None:
        arch = DEFAULT_ARCH if device_index == CPU else device_arch(device_index)
    config.check(arch)
    views = (*inputs, output)
    checks.check_config_fits(config, views)
    return LaunchPlan(config, views, device_index)


def _views(*tensors: Tensor) -> tuple[TensorView, ...]:
    return tuple(TensorView.of(name, t) for name, t in zip("qkvo", tensors, strict=False))


def _explain(error: Exception, config: FlashForwardKernelConfig, *tensors: Tensor) -> NoReturn:
    """Raise what is wrong with arguments that are no config and tensors at all, else `error`."""
    checks.check_config_type(config)
    config.check(DEFAULT_ARCH)
    _views(*tensors)
    raise error

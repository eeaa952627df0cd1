# SPDX-License-Identifier: Apache-2.0
"""Launch plans: all that follows from a config, shapes and strides, worked out once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from flash_attention.arch import Arch
from flash_attention.call import options as option_checks
from flash_attention.call import tensors as checks
from flash_attention.call.call import DEFAULTS, NO_EXTRAS, Extras, Options
from flash_attention.call.overlap import may_overlap
from flash_attention.call.problem import Geometry, Problem
from flash_attention.call.tensors import ALIGNMENT, TensorView
from flash_attention.choose.decision import check_call, decide, views_of
from flash_attention.families.forward_args import ForwardKernelArgs, Strides
from flash_attention.families.sm90.forward.splits import Chunks
from flash_attention.kernel_configs import HopperForwardKernelConfig, KernelConfig, TileOrder
from flash_attention.launch import driver
from flash_attention.launch.combine import Combine
from flash_attention.launch.kernels import device_arch, device_sms, get_kernel
from flash_attention.launch.tensor_map import EncodedMaps, describe_all

if TYPE_CHECKING:
    from cuda.bindings.driver import CUfunction

CPU = -1  # device index of tensors whose kernel is emulated
EMULATED_SMS = 2  # few, so that persistent CTAs walk several tiles
MAX_PLANS = 8192  # a program with ever new shapes starts over instead of growing


def _stream_of_object(device_index: int) -> int:
    handle: int = torch.cuda.current_stream(device_index).cuda_stream
    return handle


# The raw handle costs a tenth of a microsecond, the stream object several.
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", _stream_of_object
)


class LaunchPlan:
    """One kernel at one set of shapes and strides; tensors come and go.

    `views` are of q, k, v and o, all with a batch dimension; the tensors are on CUDA device
    `device_index`, or on the CPU. `given` names the extra tensors that come with every call. With
    `chunks` another kernel follows and combines the parts.
    """

    def __init__(
        self,
        config: KernelConfig,
        problem: Problem,
        views: Sequence[TensorView],
        device_index: int,
        arch: Arch,
        return_lse: bool = False,
        given: Sequence[str] = (),
        chunks: Chunks | None = None,
        table_stride: int = 0,  # elements from one row of the block table to the next
    ) -> None:
        self.config = config
        self.problem = problem
        self.views = views
        self.device_index = device_index
        self.arch = arch
        self.return_lse = return_lse
        self.given = tuple(given)
        self.chunks = chunks
        features = problem.features_for(config, return_lse)
        self.features = features if chunks is None else chunks.features(features)
        self.idle = problem.idle
        self.like_q = problem.d_v == problem.d_head
        self.geometry = Geometry.of(config, problem, _num_sms(device_index), chunks)
        self.maps: tuple[EncodedMaps, ...] = ()  # of q, k, v and o, where the kernel takes them
        self.counts_tiles = False
        if isinstance(config, HopperForwardKernelConfig) and not self.idle:
            dynamic = problem.per_batch or config.tile_order == TileOrder.DYNAMIC
            self.counts_tiles = dynamic and chunks is None
            if config.tma:
                self.maps = tuple(map(EncodedMaps, describe_all(config, views, self.features)))
        self._shape = (*self.geometry.grid, self.geometry.block, 1, 1, self.geometry.smem_bytes)
        self._template = bytes(packed_args(problem, views, chunks, table_stride))
        self._spans = tuple(view.layout.span for view in views)
        self._function: CUfunction | None = None
        self.combine: Combine | None = None
        if isinstance(config, HopperForwardKernelConfig) and chunks is not None and chunks.in_parts:
            target = config.target(arch)
            self.combine = Combine(chunks, problem, config, target, device_index)

    def load(self) -> CUfunction:
        """The kernel's handle, ready on the plan's device; the first use may compile."""
        if self._function is None:
            function = get_kernel(self.config, self.arch, self.features).function
            with torch.cuda.device(self.device_index):
                driver.ready_kernel(function, self.device_index, self.geometry.smem_bytes)
                if self.combine is not None:
                    self.combine.load()
            self._function = function
        return self._function

    def bind(
        self, q: Tensor, k: Tensor, v: Tensor, o: Tensor | None, *, extras: Extras = NO_EXTRAS
    ) -> ForwardKernelArgs:
        """Check what may change from call to call, then fill in the addresses.

        The address of an output that is yet to be allocated stays zero.
        """
        args = ForwardKernelArgs.from_buffer_copy(self._template)
        args.q = q_pointer = q.data_ptr()
        args.k = k_pointer = k.data_ptr()
        args.v = v_pointer = v.data_ptr()
        args.o = o_pointer = 0 if o is None else o.data_ptr()
        if (q_pointer | k_pointer | v_pointer | o_pointer) % ALIGNMENT:
            checks.check_pointers(views_of(q, k, v) if o is None else views_of(q, k, v, o))
        if o is not None:
            self._check_overlap(o_pointer, (q_pointer, k_pointer, v_pointer), q, k, v, o)
        if torch.is_grad_enabled():
            checks.check_no_grad(
                q.requires_grad
                or k.requires_grad
                or v.requires_grad
                or (o is not None and o.requires_grad)
                or (extras.sinks is not None and extras.sinks.requires_grad)
            )
        for name in self.given:
            setattr(args, name, getattr(extras, name).data_ptr())
        return args

    def _check_overlap(self, o_pointer: int, pointers: tuple[int, ...], *tensors: Tensor) -> None:
        o_span = self._spans[3]
        for pointer, span, view in zip(pointers, self._spans, self.views, strict=False):
            apart = o_pointer + o_span <= pointer or pointer + span <= o_pointer
            if not apart and may_overlap(o_pointer - pointer, view.layout, self.views[3].layout):
                *inputs, o = views_of(*tensors)
                checks.check_no_overlap(o, inputs)

    def launch(self, args: ForwardKernelArgs) -> None:
        """Queue the plan's kernels on the current stream of its device."""
        index = self.device_index
        if torch.cuda.current_device() != index:
            with torch.cuda.device(index):
                return self.launch(args)
        function, stream = self.load(), current_stream(index)
        if self.counts_tiles:
            counter = tile_counter(index, stream)
            args.tile_counter = counter.data_ptr()
        if self.combine is None:
            return driver.launch_kernel(
                function, self._shape, self._parameters(args), stream, index
            )
        parts = self.combine.new_parts(args)
        driver.launch_kernel(function, self._shape, self._parameters(args), stream, index)
        self.combine.launch(args, stream)
        del parts  # memory of the stream: what takes it next comes after both kernels

    def _parameters(self, args: ForwardKernelArgs) -> Sequence[driver.Parameter]:
        if not self.maps:
            return (args,)
        q, k, v, o = self.maps
        return q.at(args.q), k.at(args.k), v.at(args.v), o.at(args.o), args


def fill_keyless(lse: Tensor, sinks: Tensor | None) -> Tensor:
    """The log-sum-exp of rows that see no key: -inf, or the sink of their head."""
    return lse.fill_(-inf) if sinks is None else lse.copy_(sinks.detach()[:, None])


def packed_args(
    problem: Problem,
    views: Sequence[TensorView],
    chunks: Chunks | None = None,
    table_stride: int = 0,
) -> ForwardKernelArgs:
    """The kernel's arguments but for the addresses."""
    rows = problem.lse_shape[-1]
    left, right = problem.window or (0, 0)
    args = ForwardKernelArgs(
        lse_batch_stride=problem.heads * rows if problem.total_q is None else 0,
        lse_head_stride=rows,
        batch=problem.batch,
        heads=problem.heads,
        heads_per_kv=problem.heads_per_kv,
        seq_len_q=problem.seq_q,
        seq_len_k=problem.seq_k,
        d_qk=problem.d_head,
        d_v=problem.d_v,
        window_left=left,
        window_right=right,
        softmax_scale=problem.softmax_scale,
        softcap=problem.softcap,
        key_blocks=0 if chunks is None else chunks.key_blocks,
        split_blocks=0 if chunks is None else chunks.blocks,
        block_table_stride=table_stride,
    )
    for name, view in zip("qkvo", views, strict=True):
        setattr(args, f"{name}_stride", Strides(*view.strides[:3]))
    return args


_tile_counters: dict[tuple[int, int], Tensor] = {}


def tile_counter(device_index: int, stream: int) -> Tensor:
    """Two zeros for a kernel on the current stream, which leaves them zero.

    Kernels of one stream run one after another and share a pair. A graph may be replayed on any
    stream, so each of its kernels gets a pair of its own, in the memory of the graph.
    """
    capturing = torch.cuda.is_current_stream_capturing()
    counter = None if capturing else _tile_counters.get((device_index, stream))
    if counter is None:
        counter = torch.zeros(2, dtype=torch.int32, device=torch.device("cuda", device_index))
        if not capturing:
            counter = _tile_counters.setdefault((device_index, stream), counter)
    return counter


class Select:
    """Stands for the kernel config that a table or a rule of thumb has for the problem."""


SELECT = Select()

_plans: dict[tuple[object, ...], LaunchPlan] = {}


def plan_for(
    config: KernelConfig | Select,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    *,
    options: Options = DEFAULTS,
    extras: Extras = NO_EXTRAS,
) -> LaunchPlan:
    """The plan of a call: a dictionary hit, or every check and a new plan. Compiles nothing."""
    try:
        key = (
            *(config, options),
            *(q.shape, q.stride(), q.dtype, q.device),
            *(k.shape, k.stride(), k.dtype, k.device),
            *(v.shape, v.stride(), v.dtype, v.device),
            None if o is None else (o.shape, o.stride(), o.dtype, o.device),
            None if extras is NO_EXTRAS else _key_of(extras),
        )
        plan = _plans.get(key)
    except (AttributeError, RuntimeError, TypeError) as error:
        _explain(error, config, q, k, v, o, options, extras)
    if plan is None:
        plan = new_plan(config, q, k, v, o, options=options, extras=extras)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def forget_plans() -> None:
    """Let every problem be selected for anew."""
    _plans.clear()


def _key_of(extras: Extras) -> tuple[object, ...]:
    return tuple(None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in extras)


def new_plan(
    config: KernelConfig | Select,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    arch: Arch | None = None,
    *,
    options: Options = DEFAULTS,
    extras: Extras = NO_EXTRAS,
) -> LaunchPlan:
    """Every check and a new plan; `arch` is that of the tensors' device unless given."""
    if not isinstance(config, Select):
        checks.check_config_type(config)
    problem, views = check_call(q, k, v, o, options, extras)
    device_index: int = q.get_device()
    if arch is None and device_index != CPU:
        arch = device_arch(device_index)
    given = None if isinstance(config, Select) else config
    where = (arch, _num_sms(device_index), device_index)
    decision = decide(given, problem, views, options, *where, may_tune=True)
    table = extras.block_table
    return LaunchPlan(
        *(decision.config, problem, views, device_index, decision.arch, options.return_lse),
        given=tuple(extras.given()),
        chunks=decision.chunks,
        table_stride=0 if table is None else table.stride(0),
    )


def _num_sms(device_index: int) -> int:
    return EMULATED_SMS if device_index == CPU else device_sms(device_index)


def _explain(
    error: Exception,
    config: KernelConfig | Select,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    options: Options,
    extras: Extras,
) -> NoReturn:
    """Raise what is wrong with arguments that are no config and tensors at all, else `error`."""
    if not isinstance(config, Select):
        checks.check_config_type(config)
        config.check(config.default_arch)
    views_of(*((q, k, v) if o is None else (q, k, v, o)))
    option_checks.check_options(options)
    option_checks.check_types(extras, options)
    raise error

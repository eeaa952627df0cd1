# SPDX-License-Identifier: Apache-2.0
"""Masks that many models use, as mask functions: f(batch, head, query, key), true where the query
sees the key. They combine with &, | and ~, also with mask functions of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from flash_attention.errors import UnsupportedError, quoted

MaskFunction = Callable[[Any, Any, Any, Any], Any]
"""From a batch, a head, a query and a key to whether the query sees the key."""

_INTEGERS = (torch.int32, torch.int64)


class Mask:
    """A mask function that combines with others by &, | and ~.

    - `function`: called with what is captured, and then the batch, the head, the query and the key.
      If it has a name in a module, the mask pickles.
    """

    def __init__(self, function: Callable[..., Any], *captured: Any) -> None:
        self._function = function
        self._captured = captured

    def __call__(self, batch: Any, head: Any, query: Any, key: Any) -> Any:
        """Whether the query sees the key."""
        return self._function(*self._captured, batch, head, query, key)

    def __and__(self, other: MaskFunction) -> Mask:
        _check_function(other)
        return Mask(_both, self, other)

    def __or__(self, other: MaskFunction) -> Mask:
        _check_function(other)
        return Mask(_either, self, other)

    def __invert__(self) -> Mask:
        return Mask(_other, self)

    __rand__ = __and__
    __ror__ = __or__


def _both(one: MaskFunction, other: MaskFunction, *at: Any) -> Any:
    return one(*at) & other(*at)


def _either(one: MaskFunction, other: MaskFunction, *at: Any) -> Any:
    return one(*at) | other(*at)


def _other(one: MaskFunction, *at: Any) -> Any:
    return ~one(*at)


def _check_function(other: object) -> None:
    if not callable(other):
        raise UnsupportedError(
            f"a mask is combined with {quoted(other)}; & and | take masks and mask functions"
        )


def causal(offset: int = 0) -> Mask:
    """A query sees its own key, those before it, and `offset` keys after it."""
    return Mask(_not_after) if offset == 0 else Mask(_not_far_after, offset)


def _not_after(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key <= query


def _not_far_after(offset: int, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key - query <= offset


def window(left: int | None, right: int | None) -> Mask:
    """A query sees `left` keys before its own and `right` keys after it. None means all."""
    for name, size in (("left", left), ("right", right)):
        if size is not None and size < 0:
            raise UnsupportedError(
                f"{name} is {size}; give the number of keys, 0 or more, or None for all"
            )
    if left is None and right is None:
        raise UnsupportedError("left and right are None; a window has at least one limit")
    if left is None:
        return causal(right or 0)
    before = Mask(_not_far_before, left)
    return before if right is None else before & causal(right)


def _not_far_before(left: int, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query - key <= left


def prefix_lm(prefix: int | Tensor) -> Mask:
    """A query sees the keys up to its own, and the first `prefix` keys. A tensor has one number for
    every batch entry."""
    if isinstance(prefix, Tensor):
        _check(prefix, "prefix", 1)
        return causal() | Mask(_in_prefix_of_batch, prefix)
    _check_count(prefix, "prefix")
    return causal() | Mask(_in_prefix, prefix)


def _in_prefix_of_batch(prefix: Tensor, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key < prefix[batch]


def _in_prefix(prefix: int, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return key < prefix


def documents(ids: Tensor | None = None, *, lengths: Sequence[int] | Tensor | None = None) -> Mask:
    """A query sees the keys of its own document.

    - `ids`: the document of every position, as [seq] or [batch, seq].
    - `lengths`: instead, the lengths of documents that follow each other.
    """
    if (ids is None) == (lengths is None):
        raise UnsupportedError("give either ids or lengths")
    if ids is None:
        counts = torch.as_tensor(lengths)
        _check(counts, "lengths", 1)
        numbers = torch.arange(len(counts), dtype=torch.int32, device=counts.device)
        ids = numbers.repeat_interleave(counts)
    _check(ids, "ids", 1, 2)
    return Mask(_same, ids)


def _same(ids: Tensor, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return _at(ids, batch, query) == _at(ids, batch, key)


def _at(ids: Tensor, batch: Any, place: Any) -> Any:
    return ids[place] if ids.ndim == 1 else ids[batch, place]


def sink_window(sinks: int, left: int) -> Mask:
    """A query sees its own key, the `left` keys before it, and the first `sinks` keys; none after
    its own."""
    _check_count(sinks, "sinks")
    return causal() & (Mask(_in_prefix, sinks) | window(left, None))


def dilated(step: int) -> Mask:
    """A query sees every key whose distance is a multiple of `step`."""
    if step < 1:
        raise UnsupportedError(f"step is {step}; it must be 1 or more")
    return Mask(_in_steps, step)


def _in_steps(step: int, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query - key) % step == 0


def neighbourhood(width: int, radius: int) -> Mask:
    """Positions are pixels of an image whose rows have `width` pixels. A query sees the keys that
    are at most `radius` rows and `radius` columns away."""
    if width < 1 or radius < 0:
        raise UnsupportedError(
            f"width is {width} and radius {radius}; the width is 1 or more, the radius 0 or more"
        )
    return Mask(_near, width, radius)


def _near(width: int, radius: int, batch: Any, head: Any, query: Any, key: Any) -> Any:
    rows = (query // width - key // width).abs() <= radius
    return rows & ((query % width - key % width).abs() <= radius)


def image_prefix(images: Tensor) -> Mask:
    """A query sees the keys up to its own, and all of its own image.

    - `images`: the image of every position, as [seq] or [batch, seq]; negative for text.
    """
    _check(images, "images", 1, 2)
    return causal() | (Mask(_same, images) & Mask(_is_picture, images))


def _is_picture(images: Tensor, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return _at(images, batch, query) >= 0


def tree(parents: Sequence[int] | Tensor, *, prefix: int = 0, cached: Tensor | None = None) -> Mask:
    """Queries are nodes of a tree, as drafts of speculative decoding are. A query sees itself and
    its ancestors, and all keys that come before the keys of the tree.

    - `parents`: the parent of every node, which comes before it; -1 for a root.
    - `prefix`: how many keys come before the tree, where queries count from 0.
    - `cached`: int32 (batch,), how many keys of each sequence of a KV cache come before the tree.
      Its queries count from the first key on, as those of calls with `seqused_k` do.
    """
    if prefix and cached is not None:
        raise UnsupportedError(
            f"prefix is {quoted(prefix)}, and cached is given, which says for every sequence how"
            " many keys come before the tree; leave one of them out"
        )
    given = parents.tolist() if isinstance(parents, Tensor) else list(parents)
    for node, parent in enumerate(given):
        if not -1 <= parent < node:
            raise UnsupportedError(
                f"the parent of node {node} is {quoted(parent)}; a parent comes before its node,"
                " and is -1 for a root"
            )
    device = parents.device if isinstance(parents, Tensor) else None
    enter, leave = (torch.tensor(each, dtype=torch.int32, device=device) for each in _tour(given))
    if cached is not None:
        return Mask(_in_cached_tree, enter, leave, cached)
    return Mask(_in_tree, enter, leave, prefix) if prefix else Mask(_in_branch, enter, leave)


def _in_branch(enter: Tensor, leave: Tensor, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (enter[key] <= enter[query]) & (enter[query] < leave[key])


def _in_tree(
    enter: Tensor, leave: Tensor, before: Any, batch: Any, head: Any, query: Any, key: Any
) -> Any:
    node = torch.clamp(key - before, min=0)
    return (key < before) | _in_branch(enter, leave, batch, head, query, node)


def _in_cached_tree(
    enter: Tensor, leave: Tensor, cached: Tensor, batch: Any, head: Any, query: Any, key: Any
) -> Any:
    before = cached[batch]
    return _in_tree(enter, leave, before, batch, head, query - before, key)


def _tour(parents: list[int]) -> tuple[list[int], list[int]]:
    """For every node, when a walk in depth comes to it, and when it has seen all below it."""
    below = [1] * len(parents)
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] >= 0:
            below[parents[node]] += below[node]
    enter, leave, free, roots = [], [], [0] * len(parents), 0
    for node, parent in enumerate(parents):
        start = roots if parent < 0 else free[parent]
        if parent < 0:
            roots += below[node]
        else:
            free[parent] += below[node]
        enter.append(start)
        leave.append(start + below[node])
        free[node] = start + 1
    return enter, leave


def _check_count(count: int, name: str) -> None:
    if count < 0:
        raise UnsupportedError(f"{name} is {count}; give the number of keys, 0 or more")


def _check(tensor: Tensor, name: str, *dimensions: int) -> None:
    if not isinstance(tensor, Tensor):
        raise UnsupportedError(f"{name} is {quoted(tensor)}; pass a tensor of integers")
    if tensor.dtype not in _INTEGERS or tensor.ndim not in dimensions:
        raise UnsupportedError(
            f"{name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; it must have"
            f" {' or '.join(map(str, dimensions))} dimensions and dtype int32 or int64"
        )

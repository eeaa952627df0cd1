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
    """A mask function that combines with others by &, | and ~."""

    def __init__(self, function: MaskFunction) -> None:
        self._function = function

    def __call__(self, batch: Any, head: Any, query: Any, key: Any) -> Any:
        """Whether the query sees the key."""
        return self._function(batch, head, query, key)

    def __and__(self, other: MaskFunction) -> Mask:
        _check_function(other)
        return Mask(lambda *at: self(*at) & other(*at))

    def __or__(self, other: MaskFunction) -> Mask:
        _check_function(other)
        return Mask(lambda *at: self(*at) | other(*at))

    def __invert__(self) -> Mask:
        return Mask(lambda *at: ~self(*at))

    __rand__ = __and__
    __ror__ = __or__


def _check_function(other: object) -> None:
    if not callable(other):
        raise UnsupportedError(
            f"a mask is combined with {quoted(other)}; & and | take masks and mask functions"
        )


def causal(offset: int = 0) -> Mask:
    """A query sees its own key, those before it, and `offset` keys after it."""
    if offset == 0:
        return Mask(lambda batch, head, query, key: key <= query)
    return Mask(lambda batch, head, query, key: key - query <= offset)


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
    before = Mask(lambda batch, head, query, key: query - key <= left)
    return before if right is None else before & causal(right)


def prefix_lm(prefix: int | Tensor) -> Mask:
    """A query sees the keys up to its own, and the first `prefix` keys. A tensor has one number for
    every batch entry."""
    if isinstance(prefix, Tensor):
        _check(prefix, "prefix", 1)
        return causal() | (lambda batch, head, query, key: key < prefix[batch])
    _check_count(prefix, "prefix")
    return causal() | (lambda batch, head, query, key: key < prefix)


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
    return _same(ids, "ids")


def _same(ids: Tensor, name: str) -> Mask:
    _check(ids, name, 1, 2)
    if ids.ndim == 1:
        return Mask(lambda batch, head, query, key: ids[query] == ids[key])
    return Mask(lambda batch, head, query, key: ids[batch, query] == ids[batch, key])


def sink_window(sinks: int, left: int) -> Mask:
    """A query sees its own key, the `left` keys before it, and the first `sinks` keys; none after
    its own."""
    _check_count(sinks, "sinks")
    first = Mask(lambda batch, head, query, key: key < sinks)
    return causal() & (first | window(left, None))


def dilated(step: int) -> Mask:
    """A query sees every key whose distance is a multiple of `step`."""
    if step < 1:
        raise UnsupportedError(f"step is {step}; it must be 1 or more")
    return Mask(lambda batch, head, query, key: (query - key) % step == 0)


def neighbourhood(width: int, radius: int) -> Mask:
    """Positions are pixels of an image whose rows have `width` pixels. A query sees the keys that
    are at most `radius` rows and `radius` columns away."""
    if width < 1 or radius < 0:
        raise UnsupportedError(
            f"width is {width} and radius {radius}; the width is 1 or more, the radius 0 or more"
        )

    def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
        rows = (query // width - key // width).abs() <= radius
        return rows & ((query % width - key % width).abs() <= radius)

    return Mask(near)


def image_prefix(images: Tensor) -> Mask:
    """A query sees the keys up to its own, and all of its own image.

    - `images`: the image of every position, as [seq] or [batch, seq]; negative for text.
    """
    same = _same(images, "images")
    if images.ndim == 1:
        pictures = Mask(lambda batch, head, query, key: images[query] >= 0)
    else:
        pictures = Mask(lambda batch, head, query, key: images[batch, query] >= 0)
    return causal() | (same & pictures)


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

    def descends(query: Any, node: Any) -> Any:
        return (enter[node] <= enter[query]) & (enter[query] < leave[node])

    def after(before: Any, query: Any, key: Any) -> Any:
        return (key < before) | descends(query, torch.clamp(key - before, min=0))

    if cached is not None:
        return Mask(lambda b, h, query, key: after(cached[b], query - cached[b], key))
    if prefix == 0:
        return Mask(lambda b, h, query, key: descends(query, key))
    return Mask(lambda b, h, query, key: after(prefix, query, key))


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

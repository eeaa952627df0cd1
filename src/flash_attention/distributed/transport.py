# SPDX-License-Identifier: Apache-2.0
"""Exchanges between ranks, which run while others compute."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup

_connected: WeakSet[ProcessGroup] = WeakSet()


def connect(group: ProcessGroup, device: torch.device) -> None:
    """Connect the ranks of a group, once. All of them must call this at the same time: NCCL
    connects all ranks when the first message is sent, and not every rank has one."""
    if group not in _connected:
        if backends(group).get(device.type) == "nccl":
            dist.all_reduce(torch.zeros(1, device=device), group=group)
        _connected.add(group)


class Exchange:
    """Tensors on their way. `wait` returns those that arrive, by the rank that sent them.

    NCCL has a stream of its own, and Gloo has threads, so nothing waits before `wait`. Gloo cannot
    read device memory; there tensors pass through pinned memory of the host. A rank that is gone
    ends the exchange with the group's own error, at the latest after its time-out.
    """

    def __init__(
        self,
        group: ProcessGroup | None,
        sent: Mapping[int, Tensor],
        awaited: Mapping[int, int],
        like: Tensor,
    ) -> None:
        """Send one tensor to each rank of `sent`, and receive the number of elements of `awaited`
        from each of its ranks. What arrives is flat, with the dtype and the device of `like`."""
        self.device = like.device
        self.staged = group is not None and _needs_host_memory(group, like.device)
        place = {"device": "cpu", "pin_memory": True} if self.staged else {"device": like.device}
        self.arriving = {
            rank: torch.empty(size, dtype=like.dtype, **place) for rank, size in awaited.items()
        }
        # The tensors must live until they are sent.
        self.leaving = {rank: self._stage(tensor) for rank, tensor in sent.items()}
        operations = [
            P2POp(dist.isend, tensor, group=group, group_peer=rank)
            for rank, tensor in self.leaving.items()
        ]
        operations += [
            P2POp(dist.irecv, tensor, group=group, group_peer=rank)
            for rank, tensor in self.arriving.items()
        ]
        self.works = dist.batch_isend_irecv(operations) if operations else []

    def wait(self) -> dict[int, Tensor]:
        """Have the current stream, or the host, wait until everything has been sent and is here."""
        for work in self.works:
            work.wait()
        self.works, self.leaving = [], {}
        return {
            rank: tensor.to(self.device, non_blocking=True)
            for rank, tensor in self.arriving.items()
        }

    def _stage(self, tensor: Tensor) -> Tensor:
        return tensor.cpu() if self.staged else tensor.contiguous()


def _needs_host_memory(group: ProcessGroup, device: torch.device) -> bool:
    return device.type != "cpu" and backends(group).get(device.type) == "gloo"


def backends(group: ProcessGroup) -> dict[str, str]:
    """The backend of a group for each type of device."""
    pairs = dist.get_backend_config(group).split(",")
    return dict(pair.split(":", 1) for pair in pairs)

# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: attention of sequences whose rows are divided among ranks."""

from flash_attention.distributed.attention import attention
from flash_attention.distributed.context_parallel import serve_context_parallel
from flash_attention.distributed.cost.estimates import simulate
from flash_attention.distributed.cost.machine import Link, Machine, h200
from flash_attention.distributed.cost.simulator import Estimate
from flash_attention.distributed.plan import Plan, make_plan
from flash_attention.distributed.shards import position_ids, shard, unshard

__all__ = [
    "Estimate",
    "Link",
    "Machine",
    "Plan",
    "attention",
    "h200",
    "make_plan",
    "position_ids",
    "serve_context_parallel",
    "shard",
    "simulate",
    "unshard",
]

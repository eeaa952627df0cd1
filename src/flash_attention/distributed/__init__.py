# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: attention of sequences whose rows are divided among ranks."""

from flash_attention.distributed.attention import attention
from flash_attention.distributed.plan import Plan, make_plan
from flash_attention.distributed.shards import position_ids, shard, unshard

__all__ = ["Plan", "attention", "make_plan", "position_ids", "shard", "unshard"]

# SPDX-License-Identifier: Apache-2.0
"""Facts beside a measurement."""

from __future__ import annotations

import re

import pytest
import torch

from flash_attention.errors import UnsupportedError
from flash_attention_workbench.bench.environment import driver_version, git_commit


@pytest.mark.gpu
def test_driver_version_names_the_cuda_it_supports() -> None:
    assert re.search(r"CUDA \d+\.\d$|CUDA \d+\.\d\)$", driver_version())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a driver")
def test_without_a_driver_it_says_so() -> None:
    with pytest.raises(UnsupportedError, match="NVIDIA driver"):
        driver_version()


def test_commit_is_a_hash_or_absent() -> None:
    commit = git_commit()
    assert commit is None or re.fullmatch(r"[0-9a-f]{12,40}(-dirty)?", commit)

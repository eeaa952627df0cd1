# SPDX-License-Identifier: Apache-2.0
"""A rank that dies or hangs ends the others within the time-out of the group, without a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import faults
from tests.distributed.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "pass_"),
    [
        *(("hangs", "forward"), ("dies", "backward")),
        *(
            pytest.param(*other, marks=pytest.mark.exhaustive)
            for other in (("dies", "forward"), ("hangs", "backward"))
        ),
    ],
)
def test_the_others_raise(fault: str, pass_: str, tmp_path: Path) -> None:
    results = run_ranks("faults:run", 4, tmp_path, fault, pass_)
    if fault == "dies":
        assert isinstance(results[2], str)
    for rank in (0, 1, 3):
        told = results[rank]
        assert isinstance(told, dict), told
        assert told["raised"], (rank, told)
        assert told["whole"], (rank, told)
        assert not told["gradient"], (rank, told)
        assert told["seconds"] < 2 * faults.TIME_OUT, (rank, told)

# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi prints is read, and what it does not know is None."""

from __future__ import annotations

import pytest
import torch

from flash_attention_workbench.bench.clocks import Clocks, parse_clocks, read_clocks


def test_a_line_of_numbers() -> None:
    clocks = parse_clocks("1980, 3201, 412.57, 51, 100\n")
    assert clocks == Clocks(1980.0, 3201.0, 412.57, 51.0, 100.0)
    assert str(clocks) == "1980 MHz SM, 3201 MHz memory, 413 W, 51 C, 100 % busy"


def test_what_is_not_known() -> None:
    clocks = parse_clocks("1980, 3201, [N/A], 51, [Not Supported]")
    assert clocks == Clocks(1980.0, 3201.0, None, 51.0, None)
    assert str(clocks) == "1980 MHz SM, 3201 MHz memory, 51 C"
    assert parse_clocks("No devices were found") is None


@pytest.mark.gpu
def test_a_gpu_has_clocks() -> None:
    clocks = read_clocks(torch.device("cuda", torch.cuda.current_device()))
    if clocks is not None:  # nvidia-smi is not in every container
        assert clocks.sm_mhz is None or clocks.sm_mhz > 100

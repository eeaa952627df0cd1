# SPDX-License-Identifier: Apache-2.0
"""One launch of a kernel, as the launcher does it."""

from __future__ import annotations

from typing import Any

from flash_attention.launch import driver


def launch(
    kernel: Any,
    shape: tuple[int, int, int, int, int, int, int],
    parameters: int,
    stream: int,
    device_index: int,
    **how: Any,
) -> None:
    """Launch a kernel with a grid, a block and shared memory. `parameters` is the address of an
    array of their addresses."""
    config = driver.launch_config(shape[3], shape[6], **how)
    driver.put_grid(config, shape[:3], stream)
    (status,) = driver.launch_kernel(config, kernel, parameters, 0)
    if status:
        driver.launch_again(status, config, kernel, parameters, device_index)

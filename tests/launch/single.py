# SPDX-License-Identifier: Apache-2.0
"""One launch of a kernel, as the launcher does it."""

from __future__ import annotations

from typing import Any

from flash_attention.launch import driver


def launch(
    kernel: Any,
    shape: driver.Shape,
    parameters: int,
    stream: int,
    device_index: int,
    **how: Any,
) -> None:
    """Launch a kernel. `parameters` is the address of an array of their addresses."""
    launch_with(driver.LaunchConfigs(shape, **how), kernel, parameters, stream, device_index)


def launch_with(
    configs: driver.LaunchConfigs, kernel: Any, parameters: int, stream: int, device_index: int
) -> None:
    config = configs[stream]
    (status,) = driver.launch_kernel(config, kernel, parameters, 0)
    if status:
        driver.launch_again(status, config, kernel, parameters, device_index)

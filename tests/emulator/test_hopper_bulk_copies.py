# SPDX-License-Identifier: Apache-2.0
"""One bulk copy of plain bytes and back, or added: what it computes, and what is found in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptx_emulator import SCHEDULES, GlobalMemory, RunResult
from ptx_emulator.errors import DeadlockError
from tests.emulator.hopper_kernels import BULK_COPY, kinds, launch

Array = NDArray[Any]


def run_bulk(
    *defines: str,
    ctas: int = 1,
    schedule: str = "lockstep",
    offset: int = 48,
    shift: int = 0,
    nbytes: int = 256,
    expected: int | None = None,
) -> tuple[Array, RunResult]:
    """Copy or add 0, 1, 2, ... to sixty-four floats of 100, all CTAs to the same ones."""
    memory = GlobalMemory()
    source = memory.alloc(np.arange(64, dtype=np.float32), name="from")
    target = memory.alloc(np.full(64, 100, np.float32), name="to")
    dump = memory.alloc(nbytes=256)
    announced = nbytes if expected is None else expected
    args = [source + shift, target, offset, nbytes, announced, dump]
    result = launch(
        BULK_COPY,
        memory,
        args,
        *defines,
        block=32,
        ctas=ctas,
        dynamic_smem=1024,
        schedule=schedule,
    )
    return memory.read(target, np.float32, (64,)), result


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ctas", [1, 3])
def test_bulk_additions_of_several_ctas(ctas: int, schedule: str) -> None:
    target, result = run_bulk("ADD", ctas=ctas, schedule=schedule)
    np.testing.assert_array_equal(target, 100 + ctas * np.arange(64))
    assert kinds(result) == []


def test_bulk_stores_of_several_ctas_conflict() -> None:
    target, result = run_bulk()
    np.testing.assert_array_equal(target, np.arange(64))
    assert kinds(result) == []
    assert kinds(run_bulk(ctas=2)[1]) == ["cta-write-conflict"]


@pytest.mark.parametrize(
    ("defines", "found"),
    [
        (("NO_INIT_FENCE",), ["missing-proxy-fence"]),
        (("PROXY_INIT_FENCE",), []),
        (("NO_FULL_WAIT",), ["bulk-load-unwaited", "race"]),
        (("WRITE_BOX",), []),
        (("WRITE_BOX", "NO_PROXY_FENCE"), ["missing-proxy-fence"]),
        (("OVERWRITE_BOX",), []),
        (("OVERWRITE_BOX", "READ_WAIT"), []),
        (("OVERWRITE_BOX", "NO_STORE_WAIT"), ["bulk-store-unwaited", "race"]),
        (("NO_STORE_WAIT",), ["bulk-store-unwaited"]),
    ],
)
@pytest.mark.parametrize("way_out", [(), ("ADD",)])
def test_mistakes_around_a_bulk_copy(
    way_out: tuple[str, ...], defines: tuple[str, ...], found: list[str]
) -> None:
    target, result = run_bulk(*way_out, *defines)
    assert kinds(result) == found
    if defines == ("OVERWRITE_BOX", "NO_STORE_WAIT"):
        assert target[0] == (100 if way_out else 0)
    if defines == ("WRITE_BOX",):
        np.testing.assert_array_equal(target, np.arange(64) + (101 if way_out else 1))


@pytest.mark.parametrize(
    ("offset", "shift", "named"), [(8, 0, "shared address"), (0, 4, "global address")]
)
def test_a_bulk_copy_at_a_bad_address(offset: int, shift: int, named: str) -> None:
    _, result = run_bulk(offset=offset, shift=shift, nbytes=128)
    details = [f.detail for f in result.findings if f.kind == "tma-alignment"]
    assert details
    assert all(detail.startswith(f"the {named} of a bulk copy, 0x") for detail in details)
    assert all(detail.endswith("is no multiple of 16") for detail in details)


def test_a_bulk_copy_of_a_bad_size() -> None:
    _, result = run_bulk(nbytes=72)
    (detail, *_) = (f.detail for f in result.findings if f.kind == "tma-alignment")
    assert detail == "the size of a bulk copy, 0x48, is no multiple of 16"


def test_a_bulk_copy_that_leaves_its_memory() -> None:
    with pytest.raises(DeadlockError) as caught_error:
        run_bulk(offset=1008)
    assert [getattr(item, "kind", "") for item in caught_error.value.findings] == [
        "shared-out-of-bounds"
    ]
    assert "global-out-of-bounds" in kinds(run_bulk(shift=128)[1])


@pytest.mark.parametrize("error", [-32, 32])
def test_wrong_bytes_of_a_bulk_copy_stop_the_kernel(error: int) -> None:
    with pytest.raises(DeadlockError, match=f"{error} transaction bytes expected") as caught_error:
        run_bulk(expected=256 + error)
    found = [getattr(item, "kind", "") for item in caught_error.value.findings]
    assert found == (["mbarrier-transaction"] if error < 0 else [])

# SPDX-License-Identifier: Apache-2.0
"""A child does jobs; one that hangs is killed, one that dies is noticed, and another goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from flash_attention_workbench.child import Child, ChildLostError
from tests.workbench.tune import jobs

pytestmark = pytest.mark.slow  # left out of `make quick`
PARENT = """
import sys
from flash_attention_workbench.child import Child
from tests.workbench.tune import jobs
child = Child()
print(child.call(jobs.process_id), flush=True)
child.call(getattr(jobs, sys.argv[1]))
"""


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(patience=1.0)
    yield made
    made.kill()


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_jobs_are_done_in_one_other_process(child: Child) -> None:
    assert child.call(jobs.double, 21) == 42
    first = child.call(jobs.process_id)
    assert first != os.getpid()
    assert child.call(jobs.process_id) == first
    child.kill()
    assert not alive(first)


def test_a_job_that_hangs_is_killed_and_the_next_one_done(child: Child) -> None:
    before = child.call(jobs.process_id)
    start = time.monotonic()
    with pytest.raises(ChildLostError, match="no answer for 1 s") as lost:
        child.call(jobs.hang)
    assert time.monotonic() - start < 20
    assert (lost.value.fate, lost.value.note) == ("hung", "kernel 7")
    assert not alive(before)
    assert child.call(jobs.double, 1) == 2
    assert child.call(jobs.process_id) != before


def test_an_interrupt_ends_the_child_too(child: Child) -> None:
    before = child.call(jobs.process_id)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            child.call(jobs.hang)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert not alive(before)


@pytest.mark.parametrize("job", [jobs.hang, jobs.hang_in_a_class])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_in_silence_with_a_parent_that_is_killed_during_a_job(
    sent: signal.Signals, job: Callable[..., None]
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, pipe = [sys.executable, "-c", PARENT, job.__name__], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as parent:
        assert parent.stdout is not None
        process_id = int(parent.stdout.readline())
        time.sleep(0.5)
        assert alive(process_id)
        parent.send_signal(sent)
        try:
            _, errors = parent.communicate(timeout=20)  # until its child, too, has closed stderr
        except subprocess.TimeoutExpired:
            os.kill(process_id, signal.SIGKILL)
            raise
        assert errors == b""


def test_notes_keep_a_slow_job_alive(child: Child) -> None:
    child.call(jobs.double, 1)
    assert child.call(jobs.slow_but_talking, 4, 0.5) == 4


def test_a_process_that_dies_is_told_by_its_code(child: Child) -> None:
    with pytest.raises(ChildLostError, match=r"the process ended \(3\)") as lost:
        child.call(jobs.crash)
    assert (lost.value.fate, lost.value.note) == ("faulted", "kernel 8")
    assert child.call(jobs.double, 2) == 4


def test_after_an_error_there_is_a_new_process(child: Child) -> None:
    before = child.call(jobs.process_id)
    with pytest.raises(ChildLostError, match="RuntimeError: illegal memory access") as lost:
        child.call(jobs.fault)
    assert (lost.value.fate, lost.value.note) == ("faulted", "kernel 9")
    assert child.call(jobs.process_id) != before


def test_whoever_closes_ends_a_call_of_another_thread(child: Child) -> None:
    child.call(jobs.double, 1)
    child.patience = 60.0
    lost: list[ChildLostError] = []

    def wait() -> None:
        with pytest.raises(ChildLostError) as caught:
            child.call(jobs.hang)
        lost.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    start = time.monotonic()
    child.kill()
    assert time.monotonic() - start < 5
    waiting.join(timeout=20)
    assert [one.fate for one in lost] == ["faulted"]
    child.kill()
    assert child.call(jobs.double, 2) == 4


def test_a_process_that_was_killed_while_idle_is_noticed_at_the_next_call(child: Child) -> None:
    os.kill(child.call(jobs.process_id), signal.SIGKILL)
    with pytest.raises(ChildLostError, match=r"the process ended \(-9\)") as lost:
        child.call(jobs.double, 1)
    assert lost.value.note is None
    assert child.call(jobs.double, 2) == 4

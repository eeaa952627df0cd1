# SPDX-License-Identifier: Apache-2.0
"""Compiling in the background: children that fill the compile cache, what is urgent first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, as_completed
from typing import Any, Generic, TypeVar

from flash_attention.arch import Arch
from flash_attention.errors import FlashAttentionError
from flash_attention.kernel_configs import KernelConfig
from flash_attention.launch.kernels import load_unit
from flash_attention_workbench.child import Child, ChildLostError, Note
from flash_attention_workbench.tune.kernels import CompiledFor, kernels_of
from flash_attention_workbench.tune.measurer import Compiled, Failure

COMPILE_S = 120.0  # no kernel takes so long, on the busiest machine

Job = tuple[Any, ...]
"""What is compiled: the arguments of the function that compiles it."""
Answer = TypeVar("Answer")


def compile_job(
    note: Note, config: KernelConfig, compiled_for: CompiledFor, arch: Arch
) -> Compiled | Failure:
    """Compile the kernels of a config into the cache, and say what the largest takes."""
    try:
        config.check(arch)
        units = kernels_of(config, compiled_for, arch)
        taken = [load_unit(unit).compiled.resources for unit in units]
    except FlashAttentionError as error:
        return Failure("refused", str(error).partition("\n")[0])
    return Compiled(max(one.registers for one in taken), max(one.spill_bytes for one in taken))


class Compilers(Generic[Answer]):
    """So many processes at work on a queue; each kernel is compiled once, by `compile_it`."""

    def __init__(self, processes: int, compile_it: Callable[..., Answer]) -> None:
        self._compile_it = compile_it
        self._waiting = threading.Condition()
        self._queue: deque[Job] = deque()
        self._answers: dict[Job, Future[Answer | Failure]] = {}
        self._children = [Child(COMPILE_S) for _ in range(processes)]
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, jobs: Sequence[Job], *, urgent: bool = False) -> None:
        """Queue what is not compiled yet; urgent jobs go before all others, in their order."""
        with self._waiting:
            queued = set(self._queue)
            for job in reversed(jobs) if urgent else jobs:
                answer = self._answers.setdefault(job, Future())
                if answer.done() or answer.running():
                    continue
                if urgent:
                    self._queue.appendleft(job)
                elif job not in queued:
                    self._queue.append(job)
                    queued.add(job)
            self._waiting.notify_all()
        while len(self._threads) < min(len(self._children), len(self._queue)):
            child = self._children[len(self._threads)]
            self._threads.append(threading.Thread(target=self._work, args=(child,), daemon=True))
            self._threads[-1].start()

    def answers(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Answer | Failure]]:
        """Each job once it is compiled, in the order they are done; before any other that waits.

        When the caller has enough, those that are still queued are dropped.
        """
        self.submit(jobs, urgent=True)
        job_of = {self._answers[job]: job for job in jobs}
        try:
            for answer in as_completed(job_of):
                yield job_of[answer], answer.result()
        finally:
            self._drop(set(jobs))

    def _drop(self, jobs: Set[Job]) -> None:
        with self._waiting:
            self._queue = deque(job for job in self._queue if job not in jobs)

    def close(self) -> None:
        """Drop what is queued and end the processes."""
        with self._waiting:
            self._closed = True
            self._queue.clear()
            self._waiting.notify_all()
        for child in self._children:
            child.terminate()
        for _ in range(2):  # a thread may have been about to start its child
            for child in self._children:
                child.kill()
            for thread in self._threads:
                thread.join(timeout=1.0)

    def _work(self, child: Child) -> None:
        while True:
            with self._waiting:
                while not self._queue and not self._closed:
                    self._waiting.wait()
                if self._closed:
                    return
                job = self._queue.popleft()
                future = self._answers[job]
                if future.done() or not _claimed(future):
                    continue
            try:
                future.set_result(child.call(self._compile_it, *job))
            except ChildLostError as lost:
                future.set_result(Failure("refused", f"the compiler: {lost}"))
            except BaseException as error:  # the child was killed under it
                future.set_exception(error)
                return


def _claimed(future: Future[Any]) -> bool:
    """Whether it is this thread that does the job: urgent ones may be queued twice."""
    return not future.running() and future.set_running_or_notify_cancel()

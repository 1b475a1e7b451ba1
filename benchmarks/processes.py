"""Worker processes, all pinned to the same core with one thread, which time calls on demand."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from benchmarks.contenders import Timing
from benchmarks.report import ROOT

ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}
"""environment variables of the workers"""


class Worker:
    """A started worker: it has said what it is, and times its next call when called."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]):
        assert process.stdin is not None
        assert process.stdout is not None
        self.requests, self.answers, self.errors = process.stdin, process.stdout, errors
        self.description = self._read()
        """the worker's first answer, once it has warmed up"""

    def __call__(self) -> Timing:
        self.requests.write("\n")
        self.requests.flush()
        return self._read()

    def _read(self) -> dict:
        if line := self.answers.readline():
            return json.loads(line)
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        raise RuntimeError(lines[-1] if lines else "its process ended without an error message")


@contextmanager
def start_worker(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[Worker]:
    """Starts a worker and waits until it has warmed up; raises RuntimeError if it ends before."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=os.environ | ONE_THREAD | dict(environment or {}),
        ) as process,
    ):
        yield Worker(process, errors)


def worker_core() -> int:
    """The core that all workers are pinned to."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

"""One contender in a process of its own: pinned to one core, warmed up, then timing its next steps whenever a line comes in.

Runs under Engram's Python and under the others' alike, down to Python 3.7, so it imports each only where it is asked for.
"""

import json
import os
import sys
import time
from types import SimpleNamespace


def engram(contender):
    from benchmarks.contenders import Contender
    from benchmarks.training import Trainer

    return Trainer(Contender(**vars(contender))), ("engram-rl", "jax", "gymnasium")


def other(contender):
    from benchmarks.rivals import BUILDERS

    train, packages = BUILDERS[contender.software](contender)
    for _ in range(0 if contender.memory == "filling" else 2):  # which is timed from birth; twice, since some compile twice
        train(contender.iterations)

    def run():
        wall, cpu = time.perf_counter(), time.process_time()
        train(contender.iterations)
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    return run, packages


def main():
    contender, core = SimpleNamespace(**json.loads(sys.argv[1])), int(sys.argv[2])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    answers, sys.stdout = sys.stdout, sys.stderr  # a library's chatter must not pass for an answer
    run, packages = (engram if contender.software == "engram" else other)(contender)
    versions = dict({"python": sys.version.split()[0]}, **{package: _version(package) for package in packages})
    print(json.dumps(versions), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), file=answers, flush=True)


def _version(package):
    try:
        from importlib.metadata import version
    except ImportError:
        from importlib_metadata import version
    try:
        return version(package)
    except ImportError:
        return "source"


if __name__ == "__main__":
    main()

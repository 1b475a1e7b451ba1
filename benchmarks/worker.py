"""A contender in its own process: it warms up, then times a call for every line it receives.

Runs under the Pythons of all software, down to 3.7, so it imports each only where it is needed.
"""

import json
import os
import sys
import time
from types import SimpleNamespace


def engram_call(contender):
    """A timed call of Engram, and the packages whose versions matter."""
    from benchmarks.contenders import Contender
    from benchmarks.training import Trainer

    return Trainer(Contender(**vars(contender))), ("engram-rl", "jax", "gymnasium")


def rival_call(contender):
    """A timed call of other software, and the packages whose versions matter."""
    from benchmarks.rivals import BUILDERS

    train, packages = BUILDERS[contender.software](contender)
    # A filling memory is timed from the first step. Else two calls, since some compile twice.
    for _ in range(0 if contender.memory == "filling" else 2):
        train(contender.iterations)

    def call():
        wall, cpu = time.perf_counter(), time.process_time()
        train(contender.iterations)
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    return call, packages


def pin(core):
    """Restricts this process to one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def main():
    contender, core = SimpleNamespace(**json.loads(sys.argv[1])), int(sys.argv[2])
    pin(core)
    # What libraries print must not be read as an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    make_call = engram_call if contender.software == "engram" else rival_call
    call, packages = make_call(contender)
    versions = {"python": sys.version.split()[0]}
    versions.update((package, _version(package)) for package in packages)
    print(json.dumps(versions), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(call()), file=answers, flush=True)


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

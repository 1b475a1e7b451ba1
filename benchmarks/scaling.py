"""Parts `scaling` and `gpu`: many runs and large memories, in this process on the whole device."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax

from benchmarks.contenders import Contender, entry, interleave, seconds
from benchmarks.options import Options
from benchmarks.settings import DQN, MBECPP
from benchmarks.tables import Cell, Table, cells, milliseconds, number, steps_per_second
from benchmarks.training import Trainer
from engram.errors import EngramError

ONE_PROCESS = (
    "One process uses the whole device. Compilation and warm-up are not timed. Then all are "
    "measured in turn. Speeds are medians over the turns"
)
SCALING_PROTOCOL = (
    ONE_PROCESS + ". The memory is full from the start, the replay buffer holds 10,000 steps."
)
GPU_PROTOCOL = ONE_PROCESS + "; with a filling memory, the mean over the first 10,000 steps."
MEMORY_SIZES, RUNS = (500, 3_000, 30_000), (1, 10, 100)
LENGTHS = (500, 2_000)
"""steps of the trainings whose time is compared"""


def measure_scaling(options: Options) -> dict:
    # Slots times runs times iterations of a call, so that the largest take a few seconds.
    work = 6e6 if jax.default_backend() == "cpu" else 6e8
    grid = [
        _mbecpp("grid", size, runs=runs, iterations=int(min(max(work // (size * runs), 10), 1_000)))
        for size in MEMORY_SIZES
        for runs in RUNS
        if not options.quick or size * runs <= 30_000
    ]
    lengths = [_mbecpp("length", 3_000, iterations=n) for n in LENGTHS]
    return measure(grid + lengths, SCALING_PROTOCOL, 5, options)


def _mbecpp(name: str, memory_size: int, runs: int = 1, iterations: int = 1_000) -> Contender:
    """MBEC++ with a full memory; it learns from the first step, since calls may be short."""
    options = MBECPP | {"memory_size": memory_size, "learning_starts": 1}
    return Contender(name, "mbec++", options, runs=runs, iterations=iterations, memory="full")


def measure_gpu(options: Options) -> dict:
    runs = 4 if options.quick else 256
    noisy: dict[str, Any] = {"task": "cartpole-gaussian", "runs": runs}
    from_start = MBECPP | {"learning_starts": 1}
    together = [
        Contender("MBEC++", "mbec++", from_start, **noisy, iterations=500, memory="full"),
        Contender("MBEC++", "mbec++", MBECPP, **noisy, memory="filling"),
        Contender("DQN", "dqn", DQN, **noisy),
    ]
    whole = noisy | {"runs": 10, "iterations": 10_000, "memory": "anew"}
    trainings = [
        Contender("MBEC++", "mbec++", MBECPP, **whole),
        Contender("DQN", "dqn", DQN, **whole),
    ]
    result = measure(together, GPU_PROTOCOL, 10, options)
    # Whole trainings take long, so they are measured fewer times, after the rest.
    result["measured"] += measure(trainings, GPU_PROTOCOL, 3, options)["measured"]
    return result


def measure(contenders: Sequence[Contender], protocol: str, rounds: int, options: Options) -> dict:
    """Times contenders of Engram in turn, in this process."""
    rounds = 2 if options.quick else rounds
    trainers, failed = {}, []
    for i, contender in enumerate(contenders):
        if options.quick and contender.name != "length":
            contender = contender.quick()
        name = f"{i + 1}. {_label(contender)}"
        options.log(f"compiling {name}")
        try:
            trainers[name] = Trainer(contender)
        except (EngramError, jax.errors.JaxRuntimeError) as error:  # such as too little memory
            failed.append(asdict(contender) | {"failed": str(error).splitlines()[0]})
    times = interleave(trainers, rounds, options.log)
    measured = failed + [
        entry(trainer.contender, times[name], bytes=trainer.bytes_per_run())
        for name, trainer in trainers.items()
    ]
    return {"protocol": protocol, "settings": {"rounds": rounds}, "measured": measured}


def _label(contender: Contender) -> str:
    slots = contender.options.get("memory_size", 0)
    return (
        f"{contender.agent}, {slots} slots {contender.memory}, {contender.runs} runs, "
        f"{contender.iterations} steps"
    )


def scaling_tables(result: dict) -> list[Table]:
    grid = [m for m in result["measured"] if m["name"] == "grid"]
    lengths = [m for m in result["measured"] if m["name"] == "length"]
    figures = steps_per_second, milliseconds(2), _mebibytes("state", 1), _mebibytes("memory", 2)
    columns = [
        *("slots N", "runs", "steps/s", "ms per iteration"),
        *("MiB of state per run", "MiB of memory"),
    ]
    rows = [[number(_memory_size(m)), str(m["runs"]), *cells(m, *figures)] for m in grid]
    times = [
        [number(m["iterations"]), *cells(m, _wall_seconds(3), milliseconds(3))] for m in lengths
    ]
    return [
        Table("Scaling: MBEC++ on Cart Pole by memory and runs", columns, rows, result["protocol"]),
        Table(
            "Scaling: time by steps (N = 3,000, one run)",
            ["steps", "seconds", "ms per step"],
            times,
        ),
    ]


def _memory_size(m: dict) -> int:
    options = m["options"]
    return options["memory_size"] if "memory_size" in options else options["slots"]  # of old files


def _mebibytes(part: str, digits: int) -> Cell:
    return lambda m: f"{m['bytes'][part] / 2**20:.{digits}f}"


def _wall_seconds(digits: int) -> Cell:
    return lambda m: f"{seconds(m):.{digits}f}"


def gpu_tables(result: dict) -> list[Table]:
    together = [m for m in result["measured"] if m["memory"] != "anew"]
    trainings = [m for m in result["measured"] if m["memory"] == "anew"]
    rows = [
        [
            *(m["name"], m["memory"] or "-", str(m["runs"])),
            *cells(m, steps_per_second, milliseconds(2)),
        ]
        for m in together
    ]
    wall_rows = [
        [
            *(m["name"], str(m["runs"]), number(m["iterations"])),
            *cells(m, _wall_seconds(2), steps_per_second),
        ]
        for m in trainings
    ]
    return [
        Table(
            "Noisy Cart Pole, many runs",
            ["", "memory", "runs", "steps/s", "ms per iteration"],
            rows,
            result["protocol"],
        ),
        Table(
            "Noisy Cart Pole, a whole training",
            ["", "seeds", "steps of each", "seconds", "steps/s"],
            wall_rows,
        ),
    ]

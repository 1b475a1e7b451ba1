"""Many runs, large memories and long trainings, in this process and on whatever device JAX has; and the headline of a GPU."""

from collections.abc import Callable
from dataclasses import asdict

import jax

from benchmarks.comparison import DQN, MBECPP
from benchmarks.contenders import Contender, entry, interleave, seconds, speed
from benchmarks.tables import Table, number
from benchmarks.training import Trainer
from engram.errors import EngramError

HERE = "In one process, on all of the device; all compile and warm up untimed, then they take turns. Medians over the turns"
SCALING = HERE + "; the memory is full from the beginning, the replay holds 10,000 steps."
GPU = HERE + "; with a filling memory, the mean over one life of 10,000 steps of every run."
SIZES, RUNS = (500, 3_000, 30_000), (1, 10, 100)
LENGTHS = (500, 2_000)


def scaling(quick: bool, say) -> dict:
    # Learning from the first step: the largest are timed over a few iterations only.
    def agent(slots):
        return MBECPP | {"slots": slots, "learn_start": 1}

    work = 6e6 if jax.default_backend() == "cpu" else 6e8
    grid = [
        Contender("grid", "mbec++", agent(n), runs=r, iterations=int(min(max(work // (n * r), 10), 1_000)), memory="full")
        for n in SIZES
        for r in RUNS
        if not quick or n * r <= 30_000
    ]
    lengths = [Contender("length", "mbec++", agent(3_000), iterations=n, memory="full") for n in LENGTHS]
    return measure(grid + lengths, SCALING, 5, quick, say)


def gpu(quick: bool, say) -> dict:
    runs = 4 if quick else 256
    noisy = {"task": "cartpole-gaussian"}
    together = [
        Contender("MBEC++", "mbec++", MBECPP | {"learn_start": 1}, **noisy, runs=runs, iterations=500, memory="full"),
        Contender("MBEC++", "mbec++", MBECPP, **noisy, runs=runs, iterations=1_000, memory="filling"),
        Contender("DQN", "dqn", DQN, **noisy, runs=runs, iterations=1_000),
    ]
    whole = [
        Contender("MBEC++", "mbec++", MBECPP, **noisy, runs=10, iterations=10_000, memory="anew"),
        Contender("DQN", "dqn", DQN, **noisy, runs=10, iterations=10_000, memory="anew"),
    ]
    return measure(together, GPU, 10, quick, say, whole)


def measure(contenders, protocol: str, rounds: int, quick: bool, say, whole=()) -> dict:
    """`whole` trainings take long, so they take fewer turns, after the rest."""
    rounds, fewer = (2, 2) if quick else (rounds, 3)
    measured = []
    for group, turns in ((contenders, rounds), (whole, fewer)):
        measured += take_turns([c.quick() if quick and c.name != "length" else c for c in group], turns, say)
    return {"protocol": protocol, "settings": {"rounds": rounds}, "measured": measured}


def take_turns(contenders: list[Contender], rounds: int, say) -> list[dict]:
    """Times Engram's contenders in this process."""
    trainers, failed = {}, []
    for i, contender in enumerate(contenders):
        slots = contender.options.get("slots", 0)
        name = f"{contender.agent}, {slots} slots {contender.memory}, {contender.runs} runs, {contender.iterations} steps"
        say(f"compiling {name}")
        try:
            trainers[f"{i + 1}. {name}"] = Trainer(contender)
        except (EngramError, jax.errors.JaxRuntimeError) as error:  # such as too little memory: the rest can still be measured
            failed.append(asdict(contender) | {"failed": str(error).splitlines()[0]})
    times = interleave(trainers, rounds, say)
    return failed + [entry(t.contender, times[name], bytes=t.bytes_per_run()) for name, t in trainers.items()]


def cells(m: dict, *figures: Callable[[dict], str]) -> list[str]:
    """What a row says of a measurement, or why there is none."""
    return [figure(m) for figure in figures] if "wall" in m else ["not measured: " + m["failed"], *[""] * (len(figures) - 1)]


def steps_a_second(m: dict) -> str:
    return number(speed(m))


def milliseconds(digits: int) -> Callable[[dict], str]:
    return lambda m: f"{1e3 * seconds(m) / m['iterations']:.{digits}f}"


def scaling_tables(result: dict) -> list[Table]:
    grid = [m for m in result["measured"] if m["name"] == "grid"]
    lengths = [m for m in result["measured"] if m["name"] == "length"]

    def mebibytes(part: str, digits: int) -> Callable[[dict], str]:
        return lambda m: f"{m['bytes'][part] / 2**20:.{digits}f}"

    figures = steps_a_second, milliseconds(2), mebibytes("state", 1), mebibytes("memory", 2)
    rows = [[number(m["options"]["slots"]), str(m["runs"]), *cells(m, *figures)] for m in grid]
    columns = ["slots N", "runs", "steps/s", "ms an iteration", "MiB of state a run", "MiB of memory"]
    times = [[number(m["iterations"]), *cells(m, lambda m: f"{seconds(m):.3f}", milliseconds(3))] for m in lengths]
    return [
        Table("Scaling: MBEC++ on Cart Pole by memory and runs", columns, rows, result["protocol"]),
        Table("Scaling: time by steps (N = 3,000, one run)", ["steps", "seconds", "ms a step"], times),
    ]


def gpu_tables(result: dict) -> list[Table]:
    together = [m for m in result["measured"] if m["memory"] != "anew"]
    whole = [m for m in result["measured"] if m["memory"] == "anew"]
    rows = [[m["name"], m["memory"] or "-", str(m["runs"]), *cells(m, steps_a_second, milliseconds(2))] for m in together]
    walls = [[m["name"], str(m["runs"]), number(m["iterations"]), *cells(m, lambda m: f"{seconds(m):.2f}", steps_a_second)] for m in whole]
    return [
        Table("Noisy Cart Pole, many runs", ["", "memory", "runs", "steps/s", "ms an iteration"], rows, result["protocol"]),
        Table("Noisy Cart Pole, a whole training", ["", "seeds", "steps of each", "seconds", "steps/s"], walls),
    ]

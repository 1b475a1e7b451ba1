"""Many runs, large memories and long trainings, in this process and on whatever device JAX has; and the headline of a GPU."""

import jax

from benchmarks.comparison import DQN, MBECPP
from benchmarks.contenders import Contender, entry, interleave, seconds, speed
from benchmarks.tables import Table, number
from benchmarks.training import Trainer

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
    return _measure(grid + lengths, SCALING, 5, quick, say)


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
    return _measure(together, GPU, 10, quick, say, whole)


def _measure(contenders, protocol: str, rounds: int, quick: bool, say, whole=()) -> dict:
    """`whole` trainings take long, so they take fewer turns, after the rest."""
    measured = []
    for group, turns in ((contenders, rounds), (whole, 3)):
        turns = 2 if quick else turns
        trainers = {}
        for i, contender in enumerate(c.quick() if quick and c.name != "length" else c for c in group):
            slots = contender.options.get("slots", 0)
            name = f"{contender.agent}, {slots} slots {contender.memory}, {contender.runs} runs, {contender.iterations} steps"
            say(f"compiling {name}")
            trainers[f"{i + 1}. {name}"] = Trainer(contender)
        times = interleave(trainers, turns, say)
        measured += [entry(t.contender, times[name], bytes=t.bytes_per_run()) for name, t in trainers.items()]
    return {"protocol": protocol, "settings": {"rounds": 2 if quick else rounds}, "measured": measured}


def scaling_tables(result: dict) -> list[Table]:
    grid = [m for m in result["measured"] if m["name"] == "grid"]
    lengths = [m for m in result["measured"] if m["name"] == "length"]
    rows = [
        [
            number(m["options"]["slots"]),
            str(m["runs"]),
            number(speed(m)),
            f"{1e3 * seconds(m) / m['iterations']:.2f}",
            f"{m['bytes']['state'] / 2**20:.1f}",
            f"{m['bytes']['memory'] / 2**20:.2f}",
        ]
        for m in grid
    ]
    columns = ["slots N", "runs", "steps/s", "ms an iteration", "MiB of state a run", "MiB of memory"]
    times = [[number(m["iterations"]), f"{seconds(m):.3f}", f"{1e3 * seconds(m) / m['iterations']:.3f}"] for m in lengths]
    return [
        Table("Scaling: MBEC++ on Cart Pole by memory and runs", columns, rows, result["protocol"]),
        Table("Scaling: time by steps (N = 3,000, one run)", ["steps", "seconds", "ms a step"], times),
    ]


def gpu_tables(result: dict) -> list[Table]:
    together = [m for m in result["measured"] if m["memory"] != "anew"]
    whole = [m for m in result["measured"] if m["memory"] == "anew"]
    rows = [
        [m["name"], m["memory"] or "-", str(m["runs"]), number(speed(m)), f"{1e3 * seconds(m) / m['iterations']:.2f}"] for m in together
    ]
    walls = [[m["name"], str(m["runs"]), number(m["iterations"]), f"{seconds(m):.2f}", number(speed(m))] for m in whole]
    return [
        Table("Noisy Cart Pole, many runs", ["", "memory", "runs", "steps/s", "ms an iteration"], rows, result["protocol"]),
        Table("Noisy Cart Pole, a whole training", ["", "seeds", "steps of each", "seconds", "steps/s"], walls),
    ]

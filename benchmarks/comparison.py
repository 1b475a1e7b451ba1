"""Parts `cpu` and `others`: Engram next to SB3 and SBX on one core, each in its own process."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial

from benchmarks.contenders import Contender, entry, interleave, speed
from benchmarks.options import Options
from benchmarks.others import find_pythons
from benchmarks.processes import ONE_THREAD, start_worker, worker_core
from benchmarks.settings import DQN, MBECPP, SB3_DQN
from benchmarks.tables import Table, cells, cores_used, environment, spread, steps_per_second

PROTOCOL = (
    "Cart Pole, a batch of 32, an update per step, hidden layers of 128 and 128, the target copied "
    "every 100 steps, learning from step 100. Each contender has its own process, pinned to the "
    "same core, with one thread. Compilation and warm-up are not timed. Then all are measured in "
    "turn. Speeds are medians over the turns; with a filling memory, the mean over the first "
    "10,000 steps. Steps are summed over runs."
)
DQNS = [
    Contender("Stable-Baselines3 DQN", options=SB3_DQN, software="sb3", host=True),
    Contender("SBX DQN", options=SB3_DQN, software="sbx", host=True),
    Contender("Engram DQN", options=DQN, host=True),
    Contender("Engram DQN", options=DQN, iterations=5_000, replay=50_000),
    Contender("Engram DQN", options=DQN, runs=10, iterations=1_000),
]
ENGRAM = [
    Contender("Engram MBEC++", "mbec++", MBECPP, host=True, memory="filling"),
    Contender("Engram MBEC++", "mbec++", MBECPP, memory="filling"),
    Contender("Engram MBEC++", "mbec++", MBECPP, memory="full"),
    Contender("Engram MBEC++", "mbec++", MBECPP, runs=10, memory="filling"),
    Contender("Engram MBEC++", "mbec++", MBECPP, runs=10, iterations=200, memory="full"),
    Contender("Engram at random", "random", host=True, iterations=5_000),
    Contender("Engram at random", "random", iterations=1_000_000),
]


def measure_cpu(options: Options) -> dict:
    return measure(DQNS + ENGRAM, find_pythons(options), PROTOCOL, options)


def measure_others(options: Options) -> dict:
    return measure(DQNS, find_pythons(options), PROTOCOL, options)


def measure(
    contenders: Sequence[Contender], pythons: Mapping[str, str], protocol: str, options: Options
) -> dict:
    """Times contenders in turn, each in a process of its own with the Python of its software."""
    rounds = 2 if options.quick else 10
    core = worker_core()
    workers, measured = {}, []
    with ExitStack() as stack:
        for contender in contenders:
            contender = contender.quick() if options.quick else contender
            name = label(contender)
            options.log(f"warming up {name}")
            python = pythons.get(contender.software, pythons["others"])
            description = json.dumps(asdict(contender))
            command = [python, "-m", "benchmarks.worker", description, str(core)]
            try:
                workers[name] = contender, stack.enter_context(start_worker(command))
            except (OSError, RuntimeError) as error:
                measured.append(asdict(contender) | {"failed": str(error)})
        calls = {name: worker for name, (_, worker) in workers.items()}
        times = interleave(calls, rounds, options.log)
    measured += [
        entry(contender, times[name], versions=worker.description)
        for name, (contender, worker) in workers.items()
    ]
    settings = {"rounds": rounds, "core": core, "environment": ONE_THREAD}
    return {"protocol": protocol, "settings": settings, "measured": measured}


def label(contender: Contender) -> str:
    """A name that no other contender of a comparison has."""
    size = f"{contender.runs} runs of {contender.envs}"
    where = environment(asdict(contender))
    parts = contender.algorithm, contender.name, where, size, contender.memory
    return ", ".join(part for part in parts if part)


def tables(result: dict) -> list[Table]:
    measured = result["measured"]
    rivals = [m for m in measured if m["software"] != "engram"]
    speeds = {m["software"]: speed(m) for m in rivals if "wall" in m}
    columns = [
        *("", "environment", "runs", "memory"),
        *("steps/s", "slowest to fastest turn", "times SB3", "times SBX", "cores used"),
    ]
    rows = [_row(m, speeds) for m in measured]
    versions = {name: v for m in rivals for name, v in m.get("versions", {}).items()}
    note = ", ".join(f"{name} {v}" for name, v in versions.items())
    note = note and f"SB3 and SBX: {note}"
    return [Table("One core: training on Cart Pole", columns, rows, result["protocol"], note)]


def _row(m: dict, speeds: Mapping[str, float]) -> list[str]:
    ratios = (partial(_times_faster, speeds.get(software)) for software in ("sb3", "sbx"))
    return [
        *(m["name"], environment(m), str(m["runs"]), m["memory"] or "-"),
        *cells(m, steps_per_second, spread, *ratios, cores_used),
    ]


def _times_faster(rival_speed: float | None, m: dict) -> str:
    is_comparable = m["software"] == "engram" and m["agent"] != "random"
    return f"{speed(m) / rival_speed:.1f}" if rival_speed and is_comparable else "-"

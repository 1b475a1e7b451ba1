"""Part `atari`: whole trainings, next to what the device and the games allow alone."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders import Contender, Timing, entry, seconds, speed
from benchmarks.options import Options
from benchmarks.tables import Table, cells, milliseconds, number, steps_per_second
from benchmarks.training import Trainer, timed
from engram import agents
from engram.checkpoint import size
from engram.envs import get_task
from engram.envs.atari import FRAME_SKIP, threads
from engram.errors import EngramError

GAME, NUM_ENVS = "atari:seaquest", 16
"""a game in which all 18 actions differ, and environments per run"""
PROTOCOL = (
    f"{GAME}, {NUM_ENVS} environments per run, an update of a batch of 32 for every four of their "
    "steps, learning from the first step. MBEC++'s memory of 50,000 slots is full, the replay "
    "buffer has room for a million. Compilation and warm-up are not timed. Times are medians over "
    "the rounds. `whole`: a training as it is. `device`: the same without the environments, which "
    "always return the same. `act` and `learn`: the device's two programs, each waited for. `ALE`: "
    "the games alone, random actions, all sent before any answer is waited for. Parts of `whole` "
    "are means on the thread that leads. `of it act`: to call the program that selects actions. "
    "`of it choose`: until the actions are known. `of it send`: to send them to ALE. `of it "
    "games`: until ALE has answered. `of it upload`: to send the answers to the device. others: "
    "the share of CPU time that other guests of a virtual machine took. Floor of `learn`: the time "
    "in which the device moves the Q-network's weights and Adam's state through its memory as "
    "often as updates must. Floor of `whole`: that, or ALE alone, whichever is longer."
)
MOVES_PER_UPDATE = 11
"""Times that an update moves all weights through memory.

The weights are read forward and backward. Gradients are written, read for their norm and read by
Adam, which reads and writes the weights and two moments.
"""
AGENTS = {
    "MBEC++, the paper's network": ("mbec++", {}),
    "DQN, the paper's network": ("dqn", {}),
    "DQN, Nature's network": ("dqn", {"encoder": "nature"}),
}
RUNS = (8, 1)
METHODS = {
    "act": "select_actions",
    "choose": "_fetch",
    "send": "_send",
    "games": "_step",
    "upload": "_upload",
}
"""the runner's methods that are the parts of an iteration"""


def measure(options: Options) -> dict:
    """Saves after every contender: all take minutes, and a GPU may not be there for as long."""
    rounds, iterations, replay = (2, 10, 100) if options.quick else (3, 60, 250_000)
    measured: list[dict] = []
    bandwidth = memory_bandwidth(2**20 if options.quick else 2**28)
    settings = {"rounds": rounds, "cores": os.cpu_count(), "bytes_per_second": bandwidth}
    result = {"protocol": PROTOCOL, "settings": settings, "measured": measured}
    for runs in RUNS:
        options.log(f"ALE alone, {runs} runs")
        games = Contender(
            "ALE", algorithm="ALE", task=GAME, runs=runs, envs=NUM_ENVS, iterations=iterations
        )
        measured.append(entry(games, time_games(runs, iterations, rounds)))
        options.log(f"ALE: {milliseconds(2)(measured[-1])} ms")
    max_runs = min(RUNS) if options.quick else max(RUNS)
    for contender in contenders(replay, iterations, max_runs):
        if options.only and contender.agent not in options.only:
            continue
        # One after another, since eight replay buffers leave no room for others.
        options.log(f"{contender.name}, {contender.runs} runs")
        try:
            entries = measure_one(contender, rounds)
            parts = (f"{m['algorithm']}: {milliseconds(2)(m)} ms" for m in entries)
            options.log(", ".join(parts))
        except (EngramError, jax.errors.JaxRuntimeError) as error:
            entries = [asdict(contender) | {"failed": str(error).splitlines()[0]}]
        measured += entries
        options.save(result)
        gc.collect()  # a runner and its compiled functions refer to each other
    return result


def contenders(replay: int, iterations: int, max_runs: int) -> Iterator[Contender]:
    for name, (agent_name, changes) in AGENTS.items():
        agent: Any = agents.make(agent_name, "atari", learning_starts=1, **changes)
        for runs in RUNS:
            if runs <= max_runs:
                yield Contender(
                    name,
                    agent_name,
                    asdict(agent),
                    task=GAME,
                    runs=runs,
                    envs=NUM_ENVS,
                    iterations=iterations,
                    replay=replay,
                    memory="full" if agent_name == "mbec++" else "",
                )


def measure_one(contender: Contender, rounds: int) -> list[dict]:
    """The whole training, then the device alone and its two programs."""
    trainer = Trainer(contender)
    runner, iterations = trainer.runner, contender.iterations
    spent, before = clock_parts(runner), cpu_times()
    times = {"whole": [time_training(trainer) for _ in range(rounds)]}
    parts = {name: total / (rounds * iterations) for name, total in spent.items()}
    of_whole = {"parts": parts, "others": stolen_share(before, cpu_times())}
    runner._send = runner._step = lambda *_: None
    times["device"] = [time_training(trainer) for _ in range(rounds)]
    times |= time_programs(trainer, rounds)
    updates = contender.options["gradient_steps"] * iterations
    moved = MOVES_PER_UPDATE * q_network_bytes(trainer) * updates
    fields = {"bytes": trainer.bytes_per_run()["state"], "moved": moved}
    runner.close()
    runner.device_agent.arrays = ()
    return [
        entry(
            replace(contender, algorithm=part),
            part_times,
            **fields,
            **(of_whole if part == "whole" else {}),
        )
        for part, part_times in times.items()
    ]


def memory_bandwidth(count: int) -> float:
    """Bytes per second between the device and its memory, by sums of two arrays of that length."""
    x, y = jnp.ones(count), jnp.ones(count)
    add = jax.jit(lambda x, y: x + y, donate_argnums=0)
    x = add(x, y).block_until_ready()

    def add_often():
        total = x
        for _ in range(20):
            total = add(total, y)
        total.block_until_ready()

    return 20 * 3 * x.nbytes / timed(add_often)["wall"]


def clock_parts(runner: Any) -> dict[str, float]:
    """Seconds that each part of an iteration takes, summed from now on."""
    spent = dict.fromkeys(METHODS, 0.0)
    for part, name in METHODS.items():
        setattr(runner, name, _clocked(getattr(runner, name), spent, part))
    return spent


def _clocked(method: Callable, spent: dict[str, float], part: str) -> Callable:
    def call(*arguments):
        began = time.perf_counter()
        result = method(*arguments)
        spent[part] += time.perf_counter() - began
        return result

    return call


def cpu_times() -> list[int]:
    """Linux's times of all processors since the machine started; nothing elsewhere."""
    file = Path("/proc/stat")
    if not file.exists():
        return []
    return [int(x) for x in file.read_text().split("\n")[0].split()[1:9]]


def stolen_share(before: list[int], after: list[int]) -> float:
    """The share of CPU time between two readings that other guests of the machine took."""
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return spent[-1] / max(1, sum(spent)) if spent else 0.0


def q_network_bytes(trainer: Trainer) -> int:
    """Bytes of the Q-networks of all runs."""
    state = trainer.runner.run_state.agent
    return size(state.params.q if trainer.contender.agent == "mbec++" else state.q)


def time_training(trainer: Trainer) -> Timing:
    """The time until learning is done, which `advance` only dispatches."""

    def train():
        trainer.runner.advance(trainer.contender.iterations)
        jax.block_until_ready(trainer.runner.device_agent.arrays)

    return timed(train)


def time_programs(trainer: Trainer, rounds: int) -> dict[str, list[Timing]]:
    """The device's two programs alone, each waited for after every call."""
    runner, calls = trainer.runner, trainer.contender.iterations

    def act():
        for _ in range(calls):
            jax.block_until_ready(runner.select_actions())

    def learn():
        for _ in range(calls):
            runner.device_agent.learn()
            jax.block_until_ready(runner.device_agent.arrays)

    programs = {"act": act, "learn": learn}
    return {name: [timed(call) for _ in range(rounds)] for name, call in programs.items()}


def time_games(runs: int, iterations: int, rounds: int) -> list[Timing]:
    """The games alone, with random actions."""
    game = get_task(GAME).atari
    assert game is not None
    vec_envs = [game.make_vec(NUM_ENVS, threads(runs)) for _ in range(runs)]
    for vec_env in vec_envs:
        vec_env.reset(seed=0)
    random = np.random.default_rng(0)

    def play():
        for _ in range(iterations):
            for vec_env in vec_envs:
                vec_env.send(random.integers(0, game.num_actions(), NUM_ENVS))
            for vec_env in vec_envs:
                vec_env.recv()

    times = [timed(play) for _ in range(rounds)]
    for vec_env in vec_envs:
        vec_env.close()
    return times


def tables(result: dict) -> list[Table]:
    measured = result["measured"]
    games = {m["runs"]: seconds(m) for m in measured if m["algorithm"] == "ALE"}
    bandwidth = result["settings"]["bytes_per_second"]
    columns = [
        *("", "part", "runs", "agent steps/s", "emulator frames/s"),
        *("ms per iteration", "floor, ms", "GiB per run", "others"),
    ]
    rows = [row for m in measured for row in _rows(m, games, bandwidth)]
    return [Table("Atari", columns, rows, result["protocol"])]


def _rows(m: dict, games: dict[int, float], bandwidth: float) -> Iterator[list[str]]:
    """The row of a measurement, and those of its parts."""
    yield [
        *(m["name"], m["algorithm"], str(m["runs"])),
        *cells(m, steps_per_second, _frames_per_second, milliseconds(2)),
        *([_floor(m, games, bandwidth), _gibibytes(m), _others(m)] if "wall" in m else [""] * 3),
    ]
    for part, spent in m.get("parts", {}).items():
        time = f"{1e3 * spent:.2f}"
        yield [m["name"], f"of it {part}", str(m["runs"]), "–", "–", time, "–", "–", "–"]


def _frames_per_second(m: dict) -> str:
    return number(speed(m) * FRAME_SKIP)


def _floor(m: dict, games: dict[int, float], bandwidth: float) -> str:
    """The least milliseconds per iteration that the device's memory and the games allow."""
    if m["algorithm"] not in ("learn", "whole") or not m.get("moved"):
        return "–"
    least = m["moved"] / bandwidth
    if m["algorithm"] == "whole":
        least = max(least, games[m["runs"]])
    return f"{1e3 * least / m['iterations']:.2f}"


def _gibibytes(m: dict) -> str:
    return f"{m['bytes'] / 2**30:.1f}" if "bytes" in m else "–"


def _others(m: dict) -> str:
    return f"{m['others']:.0%}" if "others" in m else "–"

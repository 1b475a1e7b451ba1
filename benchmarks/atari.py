"""Atari: whole trainings, beside what the device and ALE would allow alone."""

import gc
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contenders import Contender, Timing, entry, seconds, speed
from benchmarks.tables import Table, number
from benchmarks.training import Trainer, timed
from engram import agents
from engram.envs import get_task
from engram.envs.atari import FRAME_SKIP, threads
from engram.errors import EngramError
from engram.checkpoint import size

GAME, ENVS = "atari:seaquest", 16
"""all 18 actions make a difference in it"""
PROTOCOL = (
    f"{GAME}, {ENVS} environments a run, an update of a batch of 32 for every four of their steps, learning from the first step on. "
    "`whole`: as it is trained. `device`: the same without the environments, which always show the same. `act` and `learn`: the "
    "device's two programs, each waited for. `ALE`: the environments alone, actions at random, all sent before any is waited for. "
    "MBEC++'s memory of 50,000 slots is full, replay has room for a million. All compile and warm up untimed; medians over the rounds. "
    "Of `whole`, means by the clock of the thread that leads: `of it act`, to call the program that acts; `of it choose`, until its "
    "actions are there; `of it send`, to tell ALE; `of it games`, until ALE has answered; `of it upload`, to send what it shows to the "
    "device. Others: the share of the processors' time that other guests of the machine took, where it is a virtual one. "
    "Floor of `learn`: the time in which the device's memory moves the Q-network's weights, and what Adam keeps of them, as often as "
    "updates must, at the speed that a sum of two large arrays has. Floor of `whole`: that, or ALE alone, whichever is longer."
)
MOVED = 11
"""times that an update moves all weights: read going forth and back, gradients written, read for their norm and by Adam, who reads and
writes weights and two moments"""
AGENTS = {
    "MBEC++, the paper's network": ("mbec++", {}),
    "DQN, the paper's network": ("dqn", {}),
    "DQN, Nature's network": ("dqn", {"convolutions": "nature"}),
}
RUNS = (8, 1)


def contenders(replay: int, iterations: int, most: int) -> list[Contender]:
    found = []
    for name, (agent, changes) in AGENTS.items():
        options: dict[str, Any] = asdict(agents.make(agent, "atari", learn_start=1, **changes))  # pyright: ignore[reportArgumentType]
        memory = "full" if agent == "mbec++" else ""
        one = Contender(name, agent, options, task=GAME, envs=ENVS, iterations=iterations, replay=replay, memory=memory)
        found += [replace(one, runs=runs) for runs in RUNS if runs <= most]
    return found


def measure(quick: bool, say, keep, only: list[str] | None = None) -> dict:
    """Keeps what is measured after every contender: all together take minutes, and a GPU may not be there for as long."""
    rounds, iterations, replay = (2, 10, 100) if quick else (3, 60, 250_000)
    measured: list[dict] = []
    settings = {"rounds": rounds, "cores": os.cpu_count(), "bytes_per_second": bandwidth(2**20 if quick else 2**28)}
    result = {"protocol": PROTOCOL, "settings": settings, "measured": measured}
    for runs in RUNS:
        say(f"ALE alone, {runs} runs")
        alone = Contender("ALE", task=GAME, runs=runs, envs=ENVS, iterations=iterations, algorithm="ALE")
        measured.append(entry(alone, consoles(runs, iterations, rounds)))
        say(f"ALE: {1e3 * seconds(measured[-1]) / iterations:.2f} ms")
    for contender in contenders(replay, iterations, min(RUNS) if quick else max(RUNS)):
        if only and contender.agent not in only:
            continue
        say(f"{contender.name}, {contender.runs} runs")  # one after another: eight replays leave no room for others
        try:
            trainer = Trainer(contender)
            clocks, before = clocked(trainer.runner), processors()
            times = {"whole": [timed_to_the_end(trainer) for _ in range(rounds)]}
            parts = {name: spent / (rounds * iterations) for name, spent in clocks.items()}
            of_whole = {"parts": parts, "others": taken_by_others(before, processors())}
            trainer.runner._send = trainer.runner._step = lambda *_: None
            times["device"] = [timed_to_the_end(trainer) for _ in range(rounds)]
            times |= halves(trainer, rounds)
            each, moved = trainer.bytes_per_run()["state"], MOVED * weights(trainer) * contender.options["updates"] * iterations
            for part, spent in times.items():
                more = of_whole if part == "whole" else {}
                measured.append(entry(replace(contender, algorithm=part), spent, bytes=each, moved=moved, **more))
            say(", ".join(f"{m['algorithm']}: {1e3 * seconds(m) / iterations:.2f} ms" for m in measured[-len(times) :]))
            trainer.runner.close()
            trainer.runner.device_agent.arrays = ()
        except (EngramError, jax.errors.JaxRuntimeError) as error:
            measured.append(asdict(contender) | {"failed": str(error).splitlines()[0]})
        keep(result)
        gc.collect()  # a runner and what it has compiled hold each other
    return result


def bandwidth(numbers: int) -> float:
    """Bytes a second between the device and its memory."""
    x, y = jnp.ones(numbers), jnp.ones(numbers)
    add = jax.jit(lambda x, y: x + y, donate_argnums=0)
    x = add(x, y).block_until_ready()

    def often():
        z = x
        for _ in range(20):
            z = add(z, y)
        z.block_until_ready()

    return 20 * 3 * x.nbytes / timed(often)["wall"]


PARTS = {"act": "select_actions", "choose": "_fetch", "send": "_send", "games": "_step", "upload": "_upload"}
"""of an iteration, by the runner's methods"""


def clocked(runner: Any) -> dict[str, float]:
    """The seconds that each part takes, from now on."""
    spent = dict.fromkeys(PARTS, 0.0)

    def clock(part: str, method: Any):
        def call(*given):
            began = time.perf_counter()
            answer = method(*given)
            spent[part] += time.perf_counter() - began
            return answer

        return call

    for part, name in PARTS.items():
        setattr(runner, name, clock(part, getattr(runner, name)))
    return spent


def processors() -> list[int]:
    """The times that Linux keeps of all processors since the machine began; none elsewhere."""
    file = Path("/proc/stat")
    return [int(x) for x in file.read_text().split("\n")[0].split()[1:9]] if file.exists() else []


def taken_by_others(before: list[int], after: list[int]) -> float:
    """The share of the processors' time between two readings that other guests of the machine had."""
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return spent[-1] / max(1, sum(spent)) if spent else 0.0


def weights(trainer: Trainer) -> int:
    """Bytes of the Q-networks of all runs."""
    state = trainer.runner.run_state.agent
    return size(state.semantic.q if hasattr(state, "semantic") else state.q)


def timed_to_the_end(trainer: Trainer) -> Timing:
    """Learning is dispatched, not waited for; the clock stops when it is done."""
    return timed(lambda: (trainer.runner.advance(trainer.contender.iterations), jax.block_until_ready(trainer.runner.device_agent.arrays)))


def halves(trainer: Trainer, rounds: int) -> dict[str, list[Timing]]:
    """Acting and learning alone, each waited for after every call."""
    runner, calls = trainer.runner, trainer.contender.iterations

    def act():
        for _ in range(calls):
            jax.block_until_ready(runner.select_actions())

    def learn():
        for _ in range(calls):
            runner.device_agent.learn()
            jax.block_until_ready(runner.device_agent.arrays)

    return {"act": [timed(act) for _ in range(rounds)], "learn": [timed(learn) for _ in range(rounds)]}


def consoles(runs: int, iterations: int, rounds: int) -> list[Timing]:
    """The games alone."""
    arcade = get_task(GAME).arcade
    assert arcade is not None
    machines = [arcade.make_vec(ENVS, threads(runs)) for _ in range(runs)]
    for machine in machines:
        machine.reset(seed=0)
    random = np.random.default_rng(0)

    def play():
        for _ in range(iterations):
            for machine in machines:
                machine.send(random.integers(0, arcade.num_actions(), ENVS))
            for machine in machines:
                machine.recv()

    times = [timed(play) for _ in range(rounds)]
    for machine in machines:
        machine.close()
    return times


def tables(result: dict) -> list[Table]:
    rows, found = [], result["measured"]
    games = {m["runs"]: seconds(m) for m in found if m["algorithm"] == "ALE"}

    def floor(m: dict) -> str:
        if m["algorithm"] not in ("learn", "whole") or not m.get("moved"):
            return "–"
        least = m["moved"] / result["settings"]["bytes_per_second"]
        return f"{1e3 * (max(least, games[m['runs']]) if m['algorithm'] == 'whole' else least) / m['iterations']:.2f}"

    for m in found:
        if "wall" in m:
            cells = [number(speed(m)), number(speed(m) * FRAME_SKIP), f"{1e3 * seconds(m) / m['iterations']:.2f}", floor(m)]
            more = f"{m['bytes'] / 2**30:.1f}" if "bytes" in m else "–", f"{m['others']:.0%}" if "others" in m else "–"
            rows.append([m["name"], m["algorithm"], str(m["runs"]), *cells, *more])
            for part, spent in m.get("parts", {}).items():
                rows.append([m["name"], f"of it {part}", str(m["runs"]), "–", "–", f"{1e3 * spent:.2f}", "–", "–", "–"])
        else:
            rows.append([m["name"], m["algorithm"], str(m["runs"]), "not measured: " + m["failed"], "", "", "", "", ""])
    columns = ["", "part", "runs", "agent steps/s", "emulator frames/s", "ms an iteration", "floor, ms", "GiB a run", "others"]
    return [Table("Atari", columns, rows, result["protocol"])]

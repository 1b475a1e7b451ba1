"""Part `pickup`: the 3D task alone, in JAX and in MiniWorld, and whole trainings in it."""

import gc
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import jax

from benchmarks.contenders import Contender, entry
from benchmarks.options import Options
from benchmarks.tables import Table, cells, milliseconds, number, spread, steps_per_second
from benchmarks.training import Trainer, random_steps, timed
from engram import agents
from engram.devices import platform
from engram.envs import get_task
from engram.errors import EngramError

PROTOCOL = (
    "One process uses the whole device. Compilation and the first call are not timed; then medians "
    "over the turns. In JAX random actions in 256 rooms at once, episodes reset, observations of "
    "four frames used. MiniWorld steps in as many processes as there are cores, one environment "
    "each, and the agent that acts at random gets the frames. Trainings: presets `pickup`, "
    "pickup3-jax, 16 environments, learning from the first step, MBEC++'s memory full. Each learns "
    "from a batch of 128 (DRQN 32 sequences) every 16 steps, PPO from rollouts of 2,048 steps."
)
ROOMS = ("pickup3-jax", "pickup5-jax")
NUM_ROOMS, CPU_STEPS, GPU_STEPS = 256, 20, 1_000
NUM_ENVS, REPLAY = 16, 6_250
"""environments per run, and iterations that replay has room for"""
TRAININGS = {"MBEC++": "mbec++", "DQN": "dqn", "DRQN": "drqn", "PPO, LSTM": "ppo"}


def measure(options: Options) -> dict:
    """Saves after every contender: a GPU may not be there for all of them."""
    is_gpu = platform() == "gpu"
    rounds = 2 if options.quick else 5
    measured: list[dict] = []
    settings = {"rounds": rounds, "cores": os.cpu_count()}
    result = {"protocol": PROTOCOL, "settings": settings, "measured": measured}
    steps = 1 if options.quick else GPU_STEPS if is_gpu else CPU_STEPS
    for room in ROOMS:
        options.log(room)
        call = random_steps(get_task(room), NUM_ROOMS, steps)
        alone = Contender(room, "random", algorithm="alone", envs=NUM_ROOMS, iterations=steps)
        measured.append(entry(alone, [call() for _ in range(rounds)]))
        options.save(result)
    for contender in contenders(is_gpu and not options.quick):
        if options.only and contender.agent not in options.only:
            continue
        options.log(f"{contender.name}, {contender.runs} runs")
        try:
            measured.append(_train(contender, rounds))
        except (EngramError, jax.errors.JaxRuntimeError) as error:
            measured.append(asdict(contender) | {"failed": str(error).splitlines()[0]})
        options.save(result)
        gc.collect()  # a runner and its compiled functions refer to each other
    return result


def contenders(is_gpu: bool) -> Iterator[Contender]:
    yield Contender(
        "MiniWorld, pickup3",
        "random",
        algorithm="alone",
        task="pickup3",
        envs=os.cpu_count() or 1,
        iterations=200 if is_gpu else 50,
        host=True,
    )
    for name, agent_name in TRAININGS.items():
        options = {} if agent_name == "ppo" else {"learning_starts": 1}
        agent: Any = agents.make(agent_name, "pickup", **options)
        for runs in (8, 1) if is_gpu else (1,):
            yield Contender(
                name,
                agent_name,
                asdict(agent),
                algorithm="training",
                task=ROOMS[0],
                runs=runs,
                envs=NUM_ENVS,
                iterations=_iterations(agent, is_gpu),
                replay=REPLAY,
                memory="full" if agent_name == "mbec++" else "",
            )


def _iterations(agent: Any, is_gpu: bool) -> int:
    """About 8,000 steps of each run on a GPU and 128 on a CPU, but at least a rollout."""
    return max(8_192 if is_gpu else 128, getattr(agent, "num_steps", 0)) // NUM_ENVS


def _train(contender: Contender, rounds: int) -> dict:
    trainer = Trainer(contender)

    def train():
        trainer.runner.advance(contender.iterations)
        jax.block_until_ready(trainer.runner.run_state)

    times = [timed(train) for _ in range(rounds)]
    measured = entry(contender, times, bytes=trainer.bytes_per_run()["state"])
    trainer.runner.close()
    return measured


def tables(result: dict) -> list[Table]:
    measured = result["measured"]
    alone, trainings = (
        [m for m in measured if m["algorithm"] == part] for part in ("alone", "training")
    )
    return [
        Table(
            "The 3D task alone",
            ["", "environments", "steps/s", "slowest to fastest turn"],
            [[m["name"], str(m["envs"]), *cells(m, steps_per_second, spread)] for m in alone],
            result["protocol"],
        ),
        Table(
            "Trainings on pickup3-jax",
            ["", "runs", "environments", "agent steps/s", "ms per iteration", "GiB per run"],
            [
                [
                    *(m["name"], str(m["runs"]), str(m["envs"])),
                    *cells(m, steps_per_second, milliseconds(2), _gibibytes),
                ]
                for m in trainings
            ],
            result["protocol"],
        ),
    ]


def _gibibytes(measured: dict) -> str:
    return number(measured["bytes"] / 2**30)

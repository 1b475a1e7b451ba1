"""One contender in a process of its own: pinned to one core, warmed up, then timing its next steps whenever a line comes in.

Runs under Engram's Python and under the others' alike, so it imports each only where it is asked for.
"""

import json
import os
import sys
import time
from importlib.metadata import version

from benchmarks.contenders import Contender


def engram(contender: Contender):
    from benchmarks.training import Trainer

    return Trainer(contender), ("engram-rl", "jax", "gymnasium")


def others(contender: Contender):
    """Stable-Baselines3, and SBX, which is the same in JAX."""
    import gymnasium as gym
    import torch

    torch.set_num_threads(1)
    if contender.software == "sb3":
        from stable_baselines3 import DQN
    else:
        from sbx import DQN
    env = gym.make("CartPole-v1", max_episode_steps=200)  # as long as Engram's
    model = DQN("MlpPolicy", env, device="cpu", **contender.options)
    model.learn(contender.iterations)

    def run():
        wall, cpu = time.perf_counter(), time.process_time()
        model.learn(contender.iterations, reset_num_timesteps=False)
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    return run, ("stable-baselines3", "sbx-rl", "torch", "jax", "gymnasium")


def main() -> None:
    contender, core = Contender(**json.loads(sys.argv[1])), int(sys.argv[2])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    answers, sys.stdout = sys.stdout, sys.stderr  # a library's chatter must not pass for an answer
    run, packages = (engram if contender.software == "engram" else others)(contender)
    versions = {"python": sys.version.split()[0]} | {package: _version(package) for package in packages}
    print(json.dumps(versions), file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), file=answers, flush=True)


def _version(package: str) -> str:
    try:
        return version(package)
    except ImportError:
        return "source"


if __name__ == "__main__":
    main()

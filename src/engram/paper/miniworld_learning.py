"""DQN in our 3D task and in MiniWorld: its learning curves, and its policies played in both.

`python -m engram.paper.miniworld_learning --seed 0` trains one seed in each, and writes
`results/pickup/learning-0.json`. Seeds may run side by side, each in its own process.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from engram import training
from engram.agents import make
from engram.envs import get_task
from engram.evaluation import evaluate_policy
from engram.files import write_json
from engram.paper.miniworld import FOLDER
from engram.paper.runs import agent_options
from engram.provenance import describe_machine

OURS, MINIWORLD = "pickup3-jax", "pickup3"
STEPS, EPISODES = 300_000, 100


def learn(seed: int, steps: int, episodes: int, options: dict[str, Any]) -> dict[str, Any]:
    """Learning curves of one seed in both, and greedy returns of both policies in both."""
    agent = make("dqn", "pickup", **options)
    results = {
        task: training.train(agent, task, seeds=(seed,), steps=steps) for task in (OURS, MINIWORLD)
    }
    found: dict[str, Any] = {}
    for trained_in, result in results.items():
        curve_steps, returns = result.curves[seed]
        found[trained_in] = {
            "steps": curve_steps,
            "returns": np.round(returns, 4),
            "steps_per_second": result.summary["steps_per_second"],
            "played_in": {
                task: evaluate_policy(result.policies[seed], get_task(task), episodes, seed)
                for task in results
            },
        }
    options = agent_options(agent)
    return found | {"seed": seed, "steps": steps, "options": options} | describe_machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m engram.paper.miniworld_learning", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--train-frequency", type=int, help="the preset's if left out")
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    options = {}
    if arguments.train_frequency:
        options["train_frequency"] = arguments.train_frequency
    found = learn(arguments.seed, arguments.steps, arguments.episodes, options)
    write_json(arguments.results / FOLDER / f"learning-{arguments.seed}.json", found)
    for trained_in in (OURS, MINIWORLD):
        for task, returns in found[trained_in]["played_in"].items():
            print(f"trained in {trained_in}, played in {task}: {np.mean(returns):.3f}")


if __name__ == "__main__":
    main()

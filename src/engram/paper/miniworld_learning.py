"""DQN in our 3D task and in MiniWorld: its learning curves, and its policies played in both.

`python -m engram.paper.miniworld_learning` trains all seeds in each, and writes a file for each
seed: `results/pickup/learning-0.json`. What is stopped goes on when the command is repeated.
"""

import argparse
import shutil
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
SEEDS, STEPS, EPISODES = 3, 300_000, 100


def learn(task: str, seeds: int, steps: int, folder: Path, options: dict[str, Any]):
    """The result of DQN on a task, trained in a run folder or read from it."""
    if (folder / "config.json").exists():
        return training.resume(folder)
    return training.train(make("dqn", "pickup", **options), task, seeds, steps, out=folder)


def played(learned: dict[str, training.Result], seed: int, episodes: int) -> dict[str, Any]:
    """The learning curve of one seed in each, and greedy returns of each policy in both."""
    return {
        trained_in: {
            "steps": result.curves[seed][0],
            "returns": np.round(result.curves[seed][1], 4),
            "steps_per_second": result.summary["steps_per_second"],
            "played_in": {
                task: evaluate_policy(result.policies[seed], get_task(task), episodes, seed)
                for task in learned
            },
        }
        for trained_in, result in learned.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m engram.paper.miniworld_learning", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--train-frequency", type=int, help="the preset's if left out")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path("runs/miniworld-learning"),
        help="folder of the run folders, which are removed at the end",
    )
    arguments = parser.parse_args()
    options = {}
    if arguments.train_frequency:
        options["train_frequency"] = arguments.train_frequency
    learned = {
        task: learn(task, arguments.seeds, arguments.steps, arguments.scratch / task, options)
        for task in (OURS, MINIWORLD)
    }
    for seed in range(arguments.seeds):
        found = played(learned, seed, arguments.episodes)
        of_seed = {
            "seed": seed,
            "steps": arguments.steps,
            "options": agent_options(learned[OURS].agent),
        }
        file = arguments.results / FOLDER / f"learning-{seed}.json"
        write_json(file, found | of_seed | describe_machine())
        for trained_in in learned:
            for task, returns in found[trained_in]["played_in"].items():
                mean = np.mean(returns)
                print(f"seed {seed}, trained in {trained_in}, played in {task}: {mean:.3f}")
    shutil.rmtree(arguments.scratch)


if __name__ == "__main__":
    main()

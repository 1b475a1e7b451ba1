"""Trains the agents of the zoo: policy folders in src/engram/data/zoo, each with a card.

    python packaging/zoo.py [NAME...]

Of five seeds the one is taken that is best in 100 greedy episodes. The card has its returns in 100
other episodes, and the mean of all seeds beside it.
"""

import argparse
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np

import engram
from engram import zoo
from engram.evaluation import evaluate_policy
from engram.exporters import export
from engram.page import markdown_table
from engram.provenance import describe_machine
from engram.stats import format_return

NUM_SEEDS, EPISODES = 5, 100
CHOOSE, REPORT = 1, 2
"""seeds of the episodes that choose a policy, and of those that are reported"""


class Entry(NamedTuple):
    agent: str
    task: str
    preset: str | None = None
    """the task's if None"""


ENTRIES = {
    "ppo-cartpole": Entry("ppo", "cartpole", "cartpole"),
    "dqn-cartpole": Entry("dqn", "cartpole", "cartpole"),
    "mbec++-cartpole-gaussian": Entry("mbec++", "cartpole-gaussian"),
    "mbec++-cartpole-transition": Entry("mbec++", "cartpole-transition"),
    "mbec-maze3": Entry("mbec", "maze3"),
    "mbec-maze3-noisy": Entry("mbec", "maze3-noisy"),
    "dqn-lunarlander": Entry("dqn", "lunarlander", "engram"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *ENTRIES], metavar="NAME")
    for name in parser.parse_args().names or ENTRIES:
        print(f"{name}: {format_return(make(name, ENTRIES[name]))}", flush=True)


def make(name: str, entry: Entry) -> float:
    """Trains an agent and writes its policy folder; returns its mean return."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        agent = engram.make(entry.agent, entry.preset) if entry.preset else entry.agent
        result = engram.train(agent, entry.task, NUM_SEEDS, out=run)
        task = result.task
        returns = {
            seed: evaluate_policy(policy, task, EPISODES, CHOOSE)
            for seed, policy in result.policies.items()
        }
        best = max(returns, key=lambda seed: returns[seed].mean())
        folder = zoo.FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        export(run, folder, best, half=True)
        reported = evaluate_policy(engram.load(folder), task, EPISODES, REPORT)
        means = [x.mean() for x in returns.values()]
        (folder / "README.md").write_text(card(name, entry, result, best, reported, means))
    return float(reported.mean())


def card(
    name: str,
    entry: Entry,
    result: engram.Result,
    seed: int,
    reported: np.ndarray,
    means: list[float],
) -> str:
    words = ["engram", "train", entry.agent, entry.task, "--seeds", str(NUM_SEEDS)]
    command = shlex.join(words + (["--preset", entry.preset] if entry.preset else []))
    machine = describe_machine()
    made = f"{date.today()}, commit {machine['commit'][:12]}, JAX {machine['versions']['jax']}"
    rows = {
        "agent": f"`{entry.agent}`",
        "task": f"`{entry.task}`: {result.task.description}",
        "trained": f"{result.steps:,} agent steps, `{command}`",
        "seed": f"{seed}, the best of {NUM_SEEDS} in {EPISODES} greedy episodes",
        f"return without noise, {EPISODES} other greedy episodes": describe(reported),
        f"means of all {NUM_SEEDS} seeds, in the episodes of the choice": describe(means),
        "precision": "half",
        "made": f"{made}, {machine['device']}",
    }
    return f"""\
# {name}

{format_return(reported.mean())} on average over {EPISODES} greedy episodes of `{entry.task}`.

```bash
engram eval zoo:{name}
```

{markdown_table(["", ""], [[title, text] for title, text in rows.items()])}
`config.json` has all options.
"""


def describe(returns: Sequence[float] | np.ndarray) -> str:
    mean, worst, best = map(format_return, (np.mean(returns), min(returns), max(returns)))
    return f"{mean} (worst {worst}, best {best})"


if __name__ == "__main__":
    main()

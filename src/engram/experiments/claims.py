"""What the paper says of the noisy tasks, beside what came out, and MBEC++ against DQN."""

from collections.abc import Sequence

import numpy as np

from engram.experiments.running import FAMILIES, NOISES, NOISY
from engram.report.statistics import interval, mean

Found = dict[str, dict[str, tuple[dict, dict]]]
"""task, then agent, to summary and curves"""


def claims(found: Found, names: Sequence[str]) -> str:
    """What the paper says of these tasks, beside what came out."""
    noisy = {task: agents for task, agents in found.items() if task not in FAMILIES and {"dqn", "mbec", "mbec++"} <= agents.keys()}
    if len(noisy) < len(NOISY):
        return ""

    def tasks(key: str, holds) -> str:
        return ", ".join(task for task, agents in noisy.items() if holds(*gap(agents, key))) or "none"

    def leads(key: str) -> str:
        means = {task: {agent: summary[key]["mean"] for agent, (summary, _) in agents.items()} for task, agents in noisy.items()}
        return ", ".join(task for task in noisy if max(means[task], key=means[task].__getitem__) == "mbec++") or "none"

    def solved(agent: str) -> str:
        scores = [noisy[task][agent][0]["final"]["per_seed"] for task in poles]
        return f"{agent} " + ", ".join(str(sum(x >= 195 for x in seeds)) for seeds in scores)

    poles = [f"cartpole-{noise}" for noise in NOISES]
    balancers = [agent for agent in reversed(names) if all(agent in noisy[task] for task in poles)]
    parts = {part: [noisy[t]["mbec++"][0]["metrics"][part] for t in noisy] for part in ("episodic", "semantic", "beta")}
    share = {part: (np.mean([x[:10] for x in values]), np.mean([x[-20:] for x in values])) for part, values in parts.items()}
    below = [t for t in noisy if noisy[t]["mbec"][0]["final"]["mean"] < noisy[t]["dqn"][0]["final"]["mean"]]
    return f"""\
## Against the paper's claims

- *MBEC++ leads on all nine noisy tasks.* Of all agents here it has the highest mean area on {leads("auc")}, and the highest mean final
  score on {leads("final")}. Against DQN, in area, it leads on {tasks("auc", lambda low, high: low > 0)}; it trails on
  {tasks("auc", lambda low, high: high < 0)}; the rest is undecided at 10 seeds. In final score it leads on
  {tasks("final", lambda low, high: low > 0)}; it trails on {tasks("final", lambda low, high: high < 0)}.
- *MBEC++ alone completely solves noisy Cart Pole within 10,000 steps.* Seeds of 10 whose final score is at least 195 of 200, with
  {", ".join(NOISES)} noise: {"; ".join(solved(agent) for agent in balancers)}.
- *MBEC alone performs badly.* Its mean final score is below DQN's on {len(below)} of the nine.
- *The episodic contribution starts high and is replaced by the semantic one.* From the first twentieth of training to the last tenth, over
  the nine tasks: episodic {share["episodic"][0]:.2f} to {share["episodic"][1]:.2f}, semantic {share["semantic"][0]:.2f} to
  {share["semantic"][1]:.2f}, mean weight {share["beta"][0]:.2f} to {share["beta"][1]:.2f}.

"""


def gap(agents: dict, key: str) -> tuple[float, float]:
    """The interval of MBEC++ less DQN."""
    gaps = np.array(agents["mbec++"][0][key]["per_seed"]) - np.array(agents["dqn"][0][key]["per_seed"])
    return interval(gaps, mean)


def difference(agents: dict, key: str) -> str:
    if not {"dqn", "mbec++"} <= agents.keys():
        return "–"
    low, high = gap(agents, key)
    sign = "**" if low > 0 or high < 0 else ""
    middle = agents["mbec++"][0][key]["mean"] - agents["dqn"][0][key]["mean"]
    return f"{sign}{middle:+.1f}{sign} [{low:+.1f}, {high:+.1f}]"

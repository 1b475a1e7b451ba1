"""MBEC++ against DQN, for the tables."""

import numpy as np

from engram.report.statistics import interval, mean

Found = dict[str, dict[str, tuple[dict, dict]]]
"""task, then agent, to summary and curves"""


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

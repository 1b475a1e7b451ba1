"""Who is timed, doing what; and the arithmetic from seconds to steps/s. Needs no package: every worker can import it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

QUICK = 256
"""iterations: learning begins after 100, and must have begun before the clock starts; a whole rollout of any PPO"""


@dataclass(frozen=True)
class Contender:
    """An agent that trains on a task, and how much of it is timed at once."""

    name: str
    agent: str = "dqn"
    options: dict[str, Any] = field(default_factory=dict)
    software: str = "engram"
    """or one of `rivals.BUILDERS`"""
    algorithm: str = ""
    """what it shares with those it is compared with"""
    task: str = "cartpole"
    runs: int = 1
    envs: int = 1
    """environments of every run"""
    iterations: int = 1_000
    """of every timed call; one iteration is one agent step in every environment of every run"""
    replay: int = 10_000
    """transitions that the replay can hold"""
    memory: str = ""
    """full: from the beginning; filling: as it comes, over all calls; anew: as it comes, each call from birth"""
    host: bool = False
    """on Gymnasium's environment, not on ours in JAX"""

    def quick(self) -> "Contender":
        return replace(self, iterations=min(self.iterations, max(QUICK, self.iterations // 20)))


Timing = dict[str, float]
"""seconds: `wall`, and `cpu`, which is less where others took the core, and more where several threads ran"""


def interleave(runs: Mapping[str, Callable[[], Timing]], rounds: int, say: Callable[[str], Any]) -> dict[str, list[Timing]]:
    """A, B, C, A, B, C...: what disturbs the machine for a while disturbs all alike."""
    times: dict[str, list[Timing]] = {name: [] for name in runs}
    for turn in range(rounds):
        for name, run in runs.items():
            say(f"round {turn + 1} of {rounds}: {name}")
            times[name].append(run())
    return times


def entry(contender: Contender, times: list[Timing], **more: Any) -> dict[str, Any]:
    """A measurement as it goes to the file."""
    return asdict(contender) | {key: [time[key] for time in times] for key in ("wall", "cpu")} | more


def seconds(measured: Mapping[str, Any]) -> float:
    """Of one call: the median or, where the calls differ by design, the mean."""
    wall = measured["wall"]
    return sum(wall) / len(wall) if measured.get("memory") == "filling" else median(wall)


def steps(measured: Mapping[str, Any]) -> int:
    """Agent steps of one call, of all runs together."""
    return measured["runs"] * measured.get("envs", 1) * measured["iterations"]


def speed(measured: Mapping[str, Any]) -> float:
    """Agent steps a second, of all runs together."""
    return steps(measured) / seconds(measured)


def cores(measured: Mapping[str, Any]) -> float:
    """Processor time by wall time."""
    return median(cpu / wall for cpu, wall in zip(measured["cpu"], measured["wall"], strict=True))

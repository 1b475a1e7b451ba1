"""What is timed, and the arithmetic from seconds to steps per second."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

QUICK_ITERATIONS = 256
"""of a quick call: a whole rollout of any PPO, and more than agents wait before they learn"""


@dataclass(frozen=True)
class Contender:
    """An agent that trains on a task, and how many iterations are timed per call.

    The fields are those of a measurement in a result file.
    """

    name: str
    agent: str = "dqn"
    options: dict[str, Any] = field(default_factory=dict)
    """of the agent, in the words of its software"""
    software: str = "engram"
    """`engram`, or a key of `rivals.BUILDERS`"""
    algorithm: str = ""
    """contenders of one algorithm are compared with each other"""
    task: str = "cartpole"
    runs: int = 1
    envs: int = 1
    """environments per run"""
    iterations: int = 1_000
    """per timed call; an iteration is one step in every environment of every run"""
    replay: int = 10_000
    """iterations that the replay buffer has room for"""
    memory: str = ""
    """full: filled before the first call; filling: empty before the first call; anew: empty before
    every call"""
    host: bool = False
    """whether Gymnasium's environment is stepped, not the one in JAX"""

    def quick(self) -> "Contender":
        """The same with fewer iterations per call."""
        fewer = max(QUICK_ITERATIONS, self.iterations // 20)
        return replace(self, iterations=min(self.iterations, fewer))


Timing = dict[str, float]
"""seconds of a call: `wall`, and `cpu`, the processor time of all threads"""


def interleave(
    calls: Mapping[str, Callable[[], Timing]], rounds: int, log: Callable[[str], None]
) -> dict[str, list[Timing]]:
    """Times all calls in turn, A, B, C, A, B, C, so that a disturbance meets all alike."""
    times: dict[str, list[Timing]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name, call in calls.items():
            log(f"round {turn + 1} of {rounds}: {name}")
            times[name].append(call())
    return times


def entry(contender: Contender, times: list[Timing], **extra: Any) -> dict[str, Any]:
    """A measurement as it is written to the file."""
    lists = {key: [time[key] for time in times] for key in ("wall", "cpu")}
    return asdict(contender) | lists | extra


def seconds(measured: Mapping[str, Any]) -> float:
    """Seconds per call: the median, or the mean if the memory fills from call to call."""
    wall = measured["wall"]
    return sum(wall) / len(wall) if measured.get("memory") == "filling" else median(wall)


def steps(measured: Mapping[str, Any]) -> int:
    """Agent steps per call, summed over runs."""
    return measured["runs"] * measured.get("envs", 1) * measured["iterations"]


def speed(measured: Mapping[str, Any]) -> float:
    """Agent steps per second, summed over runs."""
    return steps(measured) / seconds(measured)


def cores(measured: Mapping[str, Any]) -> float:
    """Cores in use: processor time divided by wall time."""
    pairs = zip(measured["cpu"], measured["wall"], strict=True)
    return median(cpu / wall for cpu, wall in pairs)

"""The words in which tasks, agents and the loop speak to each other."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Bool, Float, Int, Key, PyTree


class Part(NamedTuple):
    """A part of what an environment shows, where agents see something else: one row of numbers."""

    path: tuple[str | int, ...]
    """where it lies in dictionaries and tuples, key by key; empty where it is all there is"""
    shape: tuple[int, ...]
    """of what lies there"""
    counts: tuple[int, ...] = ()
    """where numbers count something, which agents see as one-hot: how many there are of each"""
    starts: tuple[int, ...] = ()
    """and from which number on each is counted"""


@dataclass(frozen=True)
class Spec:
    """What an agent must know of a task before it begins."""

    shape: tuple[int, ...]
    """of one observation"""
    actions: int
    """how many there are to choose from"""
    dtype: str = "float32"
    """of the observations"""
    brightest: int = 255
    """the largest that a byte of an observation may be"""
    parts: tuple[Part, ...] = ()
    """where the environment itself shows something else than such a row: of what that is made, in the order in which agents see it"""
    first_action: int = 0
    """the environment's own number for the agent's action 0"""
    low: tuple[float, ...] = ()
    """smallest value of each number of an observation (flattened); infinite where unknown"""
    high: tuple[float, ...] = ()
    """largest value of each number of an observation (flattened); infinite where unknown"""
    limit: int | None = None
    """steps after which an episode is cut, where known"""
    limit_ends: bool = False
    """whether being cut counts as an end, after which nothing is worth anything"""
    stack: int = 0
    """where an observation is a stack of frames along its first axis, of which the newest is the last: how many"""
    allowed: Any = None
    """where games with fewer actions share a program with others: how many this run may choose from, a number that may be traced"""
    envs: int = 1
    """environments of one run, in lockstep"""
    iterations: int = 1_000_000
    """how often the agent will act; no buffer need hold more"""


class TimeStep(NamedTuple):
    """What the E environments of one run answered to the last actions. At the very first, only `observation` means anything."""

    observation: Float[Array, "E ..."]
    """what is seen now: where an episode has just ended, the first observation of the next"""
    reward: Float[Array, "E"]
    terminated: Bool[Array, "E"]
    truncated: Bool[Array, "E"]
    final: Float[Array, "E ..."]
    """what the last action led to: the same as `observation` unless the episode ended there; nothing where observations are stacks of
    frames, since those games never end but for good"""


class Outcome(NamedTuple):
    """What one environment written in JAX answers to an action."""

    observation: Float[Array, "..."]
    reward: Float[Array, ""]
    """as the agent sees it"""
    true_reward: Float[Array, ""]
    """as it is, for scoring"""
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class Dynamics(Protocol):
    """A task written in JAX: one environment, pure functions. `params` is a pytree of numbers that may differ from run to run."""

    def reset(self, params: PyTree, key: Key[Array, ""]) -> tuple[PyTree, Float[Array, "..."]]: ...

    def step(self, params: PyTree, state: PyTree, action: Int[Array, ""], key: Key[Array, ""]) -> tuple[PyTree, Outcome]: ...


Metrics = dict[str, Float[Array, ""]]


class Agent(Protocol):
    """A frozen dataclass of hyper-parameters with these functions, each written for one run. `step` counts the calls of `act`
    before this one; it is the same for all runs, so that periodic work can be skipped in earnest."""

    def init(self, key: Key[Array, ""], spec: Spec) -> PyTree: ...

    def act(
        self, state: Any, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[PyTree, Int[Array, "E"], Metrics]:
        """Stores what happened, carries the trajectory on, chooses."""
        ...

    def learn(self, state: Any, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]) -> tuple[PyTree, Metrics]: ...

    def play(
        self,
        state: Any,
        spec: Spec,
        observation: Float[Array, "E ..."],
        first: Bool[Array, "E"],
        key: Key[Array, ""],
        epsilon: Float[Array, ""] | float = 0.0,
    ) -> tuple[PyTree, Int[Array, "E"]]:
        """The greedy action or, with probability epsilon, any; learning nothing. `first` marks the environments where an episode begins."""
        ...

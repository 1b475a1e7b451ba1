"""What environments, agents and runners pass to each other."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Key, PyTree, UInt8

from engram.config import check_all


class ObsLeaf(NamedTuple):
    """One leaf of a nested or numbered observation space; agents see all leaves as one row."""

    path: tuple[str | int, ...]
    """keys and indices that lead to the leaf; empty if it is the whole observation"""
    shape: tuple[int, ...]
    nvec: tuple[int, ...] = ()
    """for Discrete and MultiDiscrete leaves, which agents see as one-hot: the number of values"""
    start: tuple[int, ...] = ()
    """for Discrete and MultiDiscrete leaves: the smallest value"""


@dataclass(frozen=True)
class Spec:
    """What an agent needs to know of a task before it starts."""

    shape: tuple[int, ...]
    """of one observation"""
    num_actions: int
    dtype: str = "float32"
    """of the observations"""
    pixel_max: int = 255
    """upper bound of uint8 observations"""
    obs_leaves: tuple[ObsLeaf, ...] = ()
    """leaves of the environment's own observation space, if it is flattened for the agent"""
    obs_path: tuple[str, ...] = ()
    """name of the one part that is observed, if observations are dictionaries of which one is"""
    action_offset: int = 0
    """the environment's number for the agent's action 0"""
    action_nvec: tuple[int, ...] = ()
    """numbers of choices, if an action of the environment is a combination of several"""
    action_start: tuple[int, ...] = ()
    """the smallest number of each choice"""
    action_shape: tuple[int, ...] = ()
    """of an action that is a combination of choices"""
    low: tuple[float, ...] = ()
    """lower bound of each number of the flattened observation; infinite if unknown"""
    high: tuple[float, ...] = ()
    """upper bound of each number of the flattened observation; infinite if unknown"""
    max_episode_steps: int | None = None
    """time limit, if known"""
    truncation_is_terminal: bool = False
    """whether a truncated episode counts as terminated, so that nothing is bootstrapped"""
    frame_stack: int = 0
    """frames stacked along the first axis, newest last; 0 if observations are not stacks"""
    num_valid_actions: Any = None
    """if games with unlike action sets share a program: this run's actions, maybe traced"""
    num_envs: int = 1
    """parallel environments of one run"""
    num_iterations: int = 1_000_000
    """calls of `Agent.step` in the run; no buffer needs to hold more"""


class TimeStep(NamedTuple):
    """What the E environments of one run returned for the last actions.

    At the first iteration only `observation` is meaningful.
    """

    observation: Float[Array, "E ..."]
    """current observation; after an episode's end, the first one of the next episode"""
    reward: Float[Array, "E"]
    terminated: Bool[Array, "E"]
    truncated: Bool[Array, "E"]
    final_observation: Float[Array, "E ..."]
    """observation that the last action led to, before any reset; empty for stacks of frames"""

    @property
    def done(self) -> Bool[Array, "E"]:
        """Whether the last action ended the episode, by termination or truncation."""
        return self.terminated | self.truncated


class EnvStep(NamedTuple):
    """What one environment written in JAX returns for an action."""

    observation: Float[Array, "..."]
    reward: Float[Array, ""]
    """as the agent receives it, with noise"""
    true_reward: Float[Array, ""]
    """without noise, for returns that are reported"""
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class JaxEnv(Protocol):
    """One environment as pure functions; `params` is a pytree that may differ between runs."""

    def reset(self, params: PyTree, key: Key[Array, ""]) -> tuple[PyTree, Float[Array, "..."]]: ...

    def step(
        self, params: PyTree, state: PyTree, action: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[PyTree, EnvStep]: ...


@runtime_checkable
class JaxFrameEnv(JaxEnv, Protocol):
    """An environment in JAX whose observations are stacks of frames.

    `reset` and `step` return empty observations. The runner draws one frame per step: that of the
    state or, where an episode has ended, the first one of the next.
    """

    def draw(self, params: PyTree, state: PyTree) -> UInt8[Array, "..."]: ...


Metrics = dict[str, Float[Array, ""]]


class Agent:
    """Base of all agents: a frozen dataclass of options with these functions, each for one run.

    `step` is the iteration, the number of earlier calls of `Agent.step`. It is the same for all
    runs, so that periodic work can be skipped in all of them at once (`periodic.periodically`).
    """

    name: ClassVar[str] = ""
    """set by `engram.register`"""
    supports_action_mask: ClassVar[bool] = False
    """whether it heeds `Spec.num_valid_actions`"""

    # Options that runners use; an agent with such an option overrides the value here.
    gamma: float = 0.99
    clip_rewards: bool = True
    learning_starts: int = 0
    gradient_steps: int = 1

    def __post_init__(self):
        check_all(self)

    def init(self, key: Key[Array, ""], spec: Spec) -> Any:
        """The agent's state before the first step."""
        raise NotImplementedError

    def step(
        self, state: Any, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[Any, Int[Array, "E"], Metrics]:
        """Stores the last transition and selects the next actions."""
        raise NotImplementedError

    def learn(
        self, state: Any, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]
    ) -> tuple[Any, Metrics]:
        """Updates networks, if any are due."""
        return state, {}

    def act_greedy(
        self,
        state: Any,
        spec: Spec,
        observation: Float[Array, "E ..."],
        episode_start: Bool[Array, "E"],
        key: Key[Array, ""],
        epsilon: Float[Array, ""] | float = 0.0,
    ) -> tuple[Any, Int[Array, "E"]]:
        """Greedy actions, random with probability `epsilon`; learns nothing."""
        raise NotImplementedError

    def memory(self, state: Any) -> Any:
        """The episodic memory in a state, None for an agent without one."""
        return None

    def policy_state(self, state: Any) -> Any:
        """The part of the state that `act_greedy` needs, without replay buffer and optimizers."""
        return state

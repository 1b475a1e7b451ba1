"""What several agents share: groups of options, exploration, replay, and when to update."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped
from optax import GradientTransformation

from engram import replay_buffer
from engram.config import Count, Positive, Probability, Range, WholeNumber
from engram.encoders import EncoderName, is_image, shift_image
from engram.errors import EngramError
from engram.heads import HeadName
from engram.networks import (
    Network,
    NormalizeObs,
    make_network,
    mask_actions,
    obs_size,
    preprocess,
)
from engram.optim import make_optimizer
from engram.periodic import periodically
from engram.replay_buffer import Transition
from engram.targets import Loss, lower_bound_loss, quantile_target, td_target
from engram.types import Agent, Spec, TimeStep

MAX_GRAD_NORM = 10.0
"""largest norm of a gradient, of agents that learn from replay"""


@dataclass(frozen=True)
class CommonConfig(Agent):
    """Options of every agent that learns."""

    gamma: Probability = 0.99
    """discount factor"""
    normalize_obs: NormalizeObs = "none"
    """bounds: map observations from their bounds to [-1, 1]; small: divide only numbers whose
    bounds lie within (-1, 1) by the larger bound"""
    truncation_is_terminal: bool | None = None
    """whether a truncated episode counts as terminated; as the task says if None"""
    clip_rewards: bool = True
    """on Atari, clip rewards to [-1, 1]; reported returns are never clipped"""


@dataclass(frozen=True)
class ReplayConfig:
    """Options of agents that explore epsilon-greedily and learn from replay."""

    supports_action_mask: ClassVar[bool] = True

    epsilon_end: Probability = 0.01
    """final probability of a random action; it starts at 1"""
    epsilon_decay: Positive = 500.0
    """environment steps in which epsilon's distance to its final value falls to 1/e"""
    batch_size: Count = 32
    """transitions (or sequences) per gradient step"""
    buffer_size: Count = 1_000_000
    """transitions in the replay buffer"""
    learning_starts: Count = 32
    """environment steps before the first update"""
    train_frequency: Count = 1
    """environment steps between two updates"""


@dataclass(frozen=True)
class QLearningConfig:
    """Options of agents with a Q-network and one-step or n-step TD targets."""

    learning_rate: Positive = 5e-4
    """of Adam, for networks trained by TD errors"""
    anneal_lr: bool = False
    """decay the learning rate linearly to 0 over the run"""
    hidden_size: Count = 144
    """units of the Q-network's hidden layers"""
    num_layers: Count = 2
    """hidden layers of the Q-network"""
    target_update_interval: Count = 100
    """environment steps between two copies of the networks to their targets"""
    gradient_steps: Count = 1
    """gradient steps per update, each on its own batch"""
    n_step: Count = 1
    """rewards in a TD target before it bootstraps"""
    double_q: bool = False
    """select the next action with the online network, evaluate it with the target network"""
    act_with_target: bool = False
    """select actions with the target networks, which change less between two actions"""
    loss: Loss = "mse"
    """squared or Huber TD error; the head quantile always has Huber's"""
    encoder: EncoderName = "paper"
    """for images: the paper's four convolutions, the three of Mnih et al. (2015), or the residual
    network of IMPALA with once, twice or four times its channels"""
    head: HeadName = "q"
    """plain; dueling (Wang et al. 2016); or quantiles of the return (IQN, Dabney et al. 2018)"""
    num_quantiles: Count = 8
    """sampled quantile levels of a value and of its target, for the head quantile"""
    target_tau: Probability = 1.0
    """share of the online networks in a target update; 1 copies them"""
    adam_eps: Positive = 1e-8
    """epsilon of Adam"""
    weight_decay: Annotated[float, Range(0)] = 0.0
    """weight decay of Adam (AdamW)"""
    reset_interval: Count | None = None
    """environment steps between two resets of the networks; no resets if None"""
    shrink_factor: Probability = 0.5
    """share of the encoder's weights that a reset keeps; the rest, and the head, are new"""
    n_step_start: Count | None = None
    """rewards in a TD target when learning starts and after a reset; `n_step` if None"""
    gamma_start: Annotated[float, Range(0, 0.9999)] | None = None
    """discount factor when learning starts and after a reset; `gamma` if None"""
    anneal_steps: Count = 5_000
    """environment steps in which these two reach `n_step` and `gamma`"""
    lower_bound_weight: Annotated[float, Range(0)] = 0.0
    """weight in the loss of the squared amount by which a value is below the return that followed;
    0 for none"""
    lower_bound_interval: Count = 10_000
    """environment steps between two computations of these returns"""
    random_shift: WholeNumber = 0
    """pixels by which images of a batch are shifted at random (data augmentation)"""

    @property
    def num_uniforms(self) -> int:
        """Random numbers of a gradient step: places in replay, quantile levels, shifts."""
        num_levels = 2 * self.num_quantiles if self.head == "quantile" else 0
        num_shifts = 4 if self.random_shift else 0
        return self.batch_size * (1 + num_levels + num_shifts)  # pyright: ignore[reportAttributeAccessIssue]


class Levels(NamedTuple):
    """Quantile levels of the values that learn and of their targets."""

    online: Float[Array, "B N"]
    target: Float[Array, "B N"]


def draw_levels(config: Any, uniforms: Float[Array, "U M"]) -> Levels | None:
    """Quantile levels of U batches, of the uniforms that do not draw from replay."""
    if config.head != "quantile":
        return None
    last = config.batch_size * (1 + 2 * config.num_quantiles)
    levels = uniforms[:, config.batch_size : last].reshape(-1, 2, config.num_quantiles)
    return Levels(levels[:, 0], levels[:, 1])


def shift_images(
    config: Any,
    spec: Spec,
    uniforms: Float[Array, "U M"],
    obs: Shaped[Array, "B S"],
    next_obs: Shaped[Array, "B S"],
) -> tuple[Shaped[Array, "B S"], Shaped[Array, "B S"]]:
    """Observations of U batches, each shifted by itself, if images are augmented."""
    if not config.random_shift or not is_image(spec):
        return obs, next_obs
    count = 4 * config.batch_size
    shifts = uniforms[:, uniforms.shape[1] - count :].reshape(-1, 4)
    width = 2 * config.random_shift + 1
    pixels = jnp.minimum((shifts * width).astype(jnp.int32), width - 1) - config.random_shift
    shift = jax.vmap(partial(shift_image, spec.shape))
    return shift(obs, pixels[:, :2]), shift(next_obs, pixels[:, 2:])


def network_input(
    config: CommonConfig, spec: Spec, observation: Shaped[Array, "E ..."]
) -> Shaped[Array, "E S"]:
    """Observations as networks receive them and as replay stores them."""
    return preprocess(spec, observation, config.normalize_obs)


def make_q_network(config: Any, spec: Spec, key: Key[Array, ""]) -> Network:
    """A network from observations to one value per action."""
    sizes = (*[config.hidden_size] * config.num_layers, spec.num_actions)
    return make_network(spec, config.encoder, sizes, key, head_name=config.head)


# Replay


def init_replay(config: ReplayConfig, spec: Spec, **extra: Any) -> Transition:
    """An empty buffer of transitions, with `extra` fields as in the agent's rows."""
    obs = None if spec.frame_stack else zero_obs(spec)
    zeros = jnp.zeros(spec.num_envs)
    action = jnp.zeros(spec.num_envs, jnp.int32)
    row = Transition(obs, action, zeros, obs, zeros, zeros, **extra)
    return init_rows(config, spec, row._replace(mc_return=unknown_return(config, spec)))


def init_rows(config: ReplayConfig, spec: Spec, row: Any) -> Any:
    """An empty buffer of rows like this one; `obs` is a frame buffer if frames are stacked."""
    if not spec.frame_stack:
        return replay_buffer.init_buffer(row, config.buffer_size, spec.num_iterations)
    check_buffer_size(config, spec, spec.frame_stack + 2, "two more than frames are stacked")
    num_iterations = spec.num_iterations + spec.frame_stack
    rows = replay_buffer.init_buffer(row._replace(obs=None), config.buffer_size, num_iterations)
    frames = replay_buffer.init_frames(spec.frame_stack, spec.shape, *rows.action.shape)
    return rows._replace(obs=frames)


def zero_obs(spec: Spec) -> Shaped[Array, "E S"]:
    """Stands for the observations before the first step."""
    return jnp.zeros((spec.num_envs, obs_size(spec)), jnp.uint8 if is_image(spec) else jnp.float32)


def last_obs(spec: Spec, obs: Shaped[Array, "E S"]) -> Shaped[Array, "E S"]:
    """What an agent keeps of the current observation; nothing if the frame buffer has it."""
    return jnp.zeros((spec.num_envs, 0)) if spec.frame_stack else obs


def store_transition(
    config: CommonConfig,
    spec: Spec,
    state: Any,
    timestep: TimeStep,
    step: Int[Array, ""],
    **extra: Any,
) -> Transition:
    """The agent's replay with the transition from its last `obs` and `action` to this timestep.

    `extra` are further fields of the row. At step 0 there is no transition; the row written then is
    overwritten before it can be sampled.
    """
    row = Transition(
        obs=state.obs,
        action=state.action,
        reward=timestep.reward,
        next_obs=None,
        terminal=is_terminal(config, spec, timestep).astype(jnp.float32),
        done=timestep.done.astype(jnp.float32),
        mc_return=unknown_return(config, spec),
        **extra,
    )
    if not spec.frame_stack:
        row = row._replace(next_obs=network_input(config, spec, timestep.final_observation))
    return add_row(spec, state.replay, row, timestep, step)


def add_row(spec: Spec, replay: Any, row: Any, timestep: TimeStep, step: Int[Array, ""]) -> Any:
    """The buffer with the row of the last step; the newest frame is that of the current one."""
    if not spec.frame_stack:
        return replay_buffer.add(replay, row, step - 1)
    frames = replay_buffer.add_frame(replay.obs, timestep.observation, step)
    rest = replay_buffer.add(replay._replace(obs=None), row._replace(obs=None), step - 1)
    return rest._replace(obs=frames)


def has_lower_bound(config: Any) -> bool:
    """Whether values are bounded by the returns that followed."""
    weight = config.lower_bound_weight if isinstance(config, QLearningConfig) else 0.0
    return not isinstance(weight, int | float) or weight > 0  # a traced one may not be 0


def unknown_return(config: Any, spec: Spec) -> Float[Array, "E"] | None:
    """What a new row of replay says of its return."""
    return jnp.full(spec.num_envs, -jnp.inf) if has_lower_bound(config) else None


def update_returns(config: Any, spec: Spec, step: Int[Array, ""], replay: Transition) -> Transition:
    """The buffer with the returns of episodes that have ended since they were last computed."""
    if not has_lower_bound(config):
        return replay
    interval = period(config.lower_bound_interval, spec)
    mc_return = periodically(
        lambda step: step % interval == 0,
        step,
        lambda: replay_buffer.monte_carlo_returns(replay, step, config.gamma),
        lambda: replay.mc_return,
    )
    return replay._replace(mc_return=mc_return)


def with_lower_bound(
    config: Any,
    loss: Float[Array, ""],
    value: Float[Array, "B"],
    mc_return: Float[Array, "B"] | None,
) -> Float[Array, ""]:
    """The loss, and that of values below the return that followed."""
    if mc_return is None:
        return loss
    return loss + config.lower_bound_weight * lower_bound_loss(mc_return, value)


# Ends of episodes


def truncation_ends(config: CommonConfig, spec: Spec) -> bool:
    """Whether truncation counts as termination: as the option says, else as the task does.

    With frame stacks it always does, since the frame after a truncation is not stored.
    """
    given = config.truncation_is_terminal
    if spec.frame_stack:
        if given is False:
            raise EngramError(
                "truncation_is_terminal cannot be off where frames are stacked, since the frame "
                "after a truncation is not stored: leave it out."
            )
        return True
    return spec.truncation_is_terminal if given is None else given


def is_terminal(config: CommonConfig, spec: Spec, timestep: TimeStep) -> Bool[Array, "E"]:
    """Whether nothing is bootstrapped after the last transition."""
    return timestep.done if truncation_ends(config, spec) else timestep.terminated


def obs_to_evaluate(config: CommonConfig, spec: Spec, timestep: TimeStep) -> Array:
    """Current observations and, behind them, those that the last actions led to.

    They differ only at an episode's end. Where truncation is terminal the latter have no value and
    are left out: each is a search of the memory.
    """
    if truncation_ends(config, spec):
        return timestep.observation
    return jnp.concatenate([timestep.observation, timestep.final_observation])


# Exploration and schedules


def epsilon_schedule(config: Any, spec: Spec, step: Int[Array, ""]) -> Float[Array, ""]:
    """Probability of a random action: exponential decay from 1 to `epsilon_end`."""
    decay = jnp.exp(-step * spec.num_envs / config.epsilon_decay)
    return config.epsilon_end + (1.0 - config.epsilon_end) * decay


def learning_rate_schedule(
    config: Any, spec: Spec, step: Int[Array, ""] | int
) -> Float[Array, ""] | float:
    """The learning rate of this iteration."""
    if not config.anneal_lr:
        return config.learning_rate
    return config.learning_rate * jnp.maximum(1 - step / spec.num_iterations, 0.0)


def adam(config: Any, spec: Spec, step: Int[Array, ""] | int = 0) -> GradientTransformation:
    """Adam with the learning rate of this iteration and clipped gradients."""
    learning_rate = learning_rate_schedule(config, spec, step)
    weight_decay = config.weight_decay if isinstance(config, QLearningConfig) else 0.0
    return make_optimizer(learning_rate, MAX_GRAD_NORM, config.adam_eps, weight_decay)


def epsilon_greedy(
    q: Float[Array, "E A"], epsilon: Float[Array, ""], uniforms: Float[Array, "2 E"]
) -> Int[Array, "E"]:
    """A greedy action or, with probability epsilon, any valid one; ties are broken at random.

    A table that has stored no reward would otherwise always take the first action.
    """
    explore, choice = uniforms
    is_greedy = q == jnp.max(q, axis=-1, keepdims=True)
    candidates = jnp.where((explore < epsilon)[:, None], q > -jnp.inf, is_greedy)
    count = jnp.cumsum(candidates, axis=-1)
    drawn = jnp.minimum((choice * count[:, -1]).astype(jnp.int32), count[:, -1] - 1)
    return jnp.argmax(count > drawn[:, None], axis=-1).astype(jnp.int32)


def num_valid_actions(spec: Spec) -> Int[Array, ""] | int:
    """Actions that this run may take."""
    return spec.num_actions if spec.num_valid_actions is None else spec.num_valid_actions


def greedy_action(
    spec: Spec,
    q: Float[Array, "E A"],
    epsilon: Float[Array, ""] | float,
    key: Key[Array, ""],
) -> Int[Array, "E"]:
    """The first greedy action or, with probability epsilon, any valid one."""
    greedy = jnp.argmax(mask_actions(spec, q), axis=-1).astype(jnp.int32)
    if isinstance(epsilon, float) and not epsilon:
        return greedy
    explore_key, action_key = jax.random.split(key)
    random = jax.random.randint(action_key, greedy.shape, 0, num_valid_actions(spec))
    return jnp.where(jax.random.uniform(explore_key, greedy.shape) < epsilon, random, greedy)


def period(env_steps: int, spec: Spec) -> int:
    """Iterations in which a run's environments take so many steps, rounded down, at least one."""
    return max(1, env_steps // spec.num_envs)


def should_update(config: Any, spec: Spec, step: Int[Array, ""] | int) -> Bool[Array, ""] | bool:
    """Whether this iteration updates the networks."""
    has_started = step * spec.num_envs >= config.learning_starts
    return has_started & (step % period(config.train_frequency, spec) == 0)


def update_target(
    config: Any, spec: Spec, step: Int[Array, ""], params: PyTree, target_params: PyTree
) -> PyTree:
    """The target networks, moved to the online ones every `target_update_interval` steps."""
    interval = period(config.target_update_interval, spec)

    def moved():
        rate = config.target_tau
        if isinstance(rate, float) and rate == 1.0:  # not where runs differ in it
            return params
        return jax.tree.map(lambda new, old: rate * new + (1 - rate) * old, params, target_params)

    if is_image(spec):  # large networks: a branch costs less than reading both
        is_due = lambda step: step % interval == 0  # noqa: E731
        return periodically(is_due, step, moved, lambda: target_params)
    is_due = step % interval == 0
    return jax.tree.map(lambda new, old: jnp.where(is_due, new, old), moved(), target_params)


def batch_td_target(
    config: Any,
    batch: Any,
    next_q: Float[Array, "B A"],
    selector_q: Float[Array, "B A"] | None,
) -> Float[Array, "B *N"]:
    """TD targets of a batch, or samples of their distributions for the head quantile."""
    if config.head != "quantile":
        return td_target(batch.n_step_return, batch.terminal, next_q, batch.discount, selector_q)
    selector = next_q if selector_q is None else selector_q
    rows = batch.n_step_return, batch.terminal, batch.next_quantiles, batch.discount
    return quantile_target(*rows, selector)


def run_updates(
    config: Any,
    prepare: Callable[[Float[Array, "U N"]], PyTree],
    update: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    params: PyTree,
    key: Key[Array, ""],
    num_uniforms: int,
) -> tuple[PyTree, PyTree]:
    """All gradient steps of an iteration, and the means of their losses.

    `prepare` computes what no update changes for all of them at once, from uniforms [U, N]:
    replay, memory and target networks are read once. `update` takes one batch of it.
    """
    count = config.gradient_steps
    keys = key[None] if count == 1 else jax.random.split(key, count)
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, (num_uniforms,)))(keys)
    batches = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), prepare(uniforms))
    if count == 1:
        return update(params, jax.tree.map(lambda x: x[0], batches))
    params, losses = lax.scan(update, params, batches)
    return params, jax.tree.map(jnp.mean, losses)


# Checks


def check_neighbours(config: Any, *names: str) -> None:
    """Raises if more neighbours are wanted than a memory has slots."""
    for name in names:
        if (getattr(config, name) or 0) > config.memory_size:
            raise EngramError(
                f"{name} ({getattr(config, name)}) must not exceed memory_size "
                f"({config.memory_size}): lower the one or raise the other."
            )


def check_buffer_size(config: ReplayConfig, spec: Spec, rows: int, reason: str) -> None:
    """Raises if the buffer cannot hold so many consecutive steps of each environment."""
    needed = rows * spec.num_envs
    if config.buffer_size < needed:
        each = f" of each of {spec.num_envs} environments" if spec.num_envs > 1 else ""
        raise EngramError(
            f"buffer_size ({config.buffer_size}) must hold {rows} steps{each}, {reason}: "
            f"raise it to at least {needed}, or lower the other."
        )

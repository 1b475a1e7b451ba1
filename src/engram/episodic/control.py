"""Episodic control (Sections 3.1 to 3.3, Algorithm 1), shared by MBEC and MBEC++.

One step plans every action, and reads, refines and writes the memory, all by one search.
`model_training` trains the trajectory model and the reward model.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from engram.config import Count, Positive, Probability
from engram.episodic import accumulator, trajectory_model
from engram.episodic import memory as mem
from engram.episodic.accumulator import PendingReturns
from engram.episodic.memory import Memory, Neighbours
from engram.episodic.trajectory_model import RewardModel, TrajectoryModel
from engram.heads import MLP
from engram.networks import LSTMState, init_params, mask_actions, reset_where, zero_state
from engram.optim import make_optimizer
from engram.types import Spec

WRITE_LR = 0.5
"""alpha_w, step size of writes and refinements"""
WRITES_PER_STEP = 2
"""most memories written in a step if every step is stored: so the rest of a long episode, which
ended all at once, is soon written"""
REWARD_HIDDEN = 32
"""hidden units of the reward model"""
MAX_GRAD_NORM = 10.0
"""largest norm of a gradient, of the trajectory model and the reward model"""


@dataclass(frozen=True)
class EpisodicControlConfig:
    """Options of episodic control."""

    num_neighbours: Count = 15
    """K, neighbours that a read averages over"""
    num_write_neighbours: Count | None = None
    """K_w, neighbours that a write or refinement moves; K if None"""
    chunk: Count = 10
    """L, steps of an episode between two memories"""
    memory_size: Count = 3_000
    """N, slots of the memory"""
    trajectory_dim: Count = 16
    """H, size of a trajectory vector"""
    p_read: Probability = 0.7
    """probability of reading the weighted mean, else the maximum"""
    p_refine: Probability = 0.1
    """p_u, probability of refining the memory in a step"""
    store_final: bool = False
    """also store the trajectory at each episode's last step"""
    trajectory_loss: Literal["recall", "prediction", "none"] = "recall"
    """loss of the trajectory model: TR, TP, or none"""
    trajectory_lr: Positive = 5e-4
    """learning rate of the trajectory model"""
    reward_lr: Positive = 5e-4
    """learning rate of the reward model"""


class StorageRules(NamedTuple):
    """What is stored in the memory, and when; the defaults are the paper's."""

    includes_reward: bool = False
    """whether the return of a trajectory includes the reward of its last step: the memory then
    holds Q-values, and needs no reward model"""
    n_step: int | None = None
    """rewards of a return before it bootstraps; all until the episode's end if None"""
    reencodes: bool = False
    """whether memories know their step, so that their keys can be re-encoded"""


PAPER_RULES = StorageRules()


class PendingKey(NamedTuple):
    """A key that waits for its return, and the number of its step if keys are re-encoded."""

    tau: Float[Array, "E H"]
    source: Int[Array, "E"] | None


class EpisodicState(NamedTuple):
    """The state of episodic control in one run."""

    memory: Memory
    trajectory_model: TrajectoryModel
    reward_model: RewardModel
    trajectory_opt_state: PyTree
    reward_opt_state: PyTree
    tau: LSTMState
    """of each environment, after its last action"""
    prev_tau: LSTMState
    """of each environment, before its last action"""
    episode_step: Int[Array, "E"]
    """t, steps of the current episode"""
    pending: PendingReturns
    """trajectories that wait for their return"""
    trajectory_loss: Float[Array, ""]
    """last loss of the trajectory model"""
    key_model: TrajectoryModel | None = None
    """the copy of the trajectory model that makes keys, if keys are re-encoded"""


def init(
    config: EpisodicControlConfig,
    spec: Spec,
    num_features: int,
    key: Key[Array, ""],
    rules: StorageRules = PAPER_RULES,
) -> EpisodicState:
    """An empty memory and new models."""
    models_key = jax.random.split(key)[0]  # as when the published runs were trained
    inputs = num_features + spec.num_actions

    def build(key):
        trajectory = TrajectoryModel(num_features, spec.num_actions, config.trajectory_dim, key)
        return trajectory, RewardModel(MLP((inputs, REWARD_HIDDEN, 1), key))

    trajectory, reward = init_params(build, models_key)
    tau = zero_state(spec.num_envs, config.trajectory_dim)
    capacity = accumulator.capacity_for(spec.max_episode_steps, config.chunk)
    return EpisodicState(
        memory=mem.init_memory(config.memory_size, config.trajectory_dim, rules.reencodes),
        trajectory_model=trajectory,
        reward_model=reward,
        trajectory_opt_state=make_optimizer(config.trajectory_lr, MAX_GRAD_NORM).init(trajectory),
        reward_opt_state=make_optimizer(config.reward_lr, MAX_GRAD_NORM).init(reward),
        tau=tau,
        prev_tau=tau,
        episode_step=jnp.zeros(spec.num_envs, jnp.int32),
        pending=accumulator.init_pending(_pending_key(rules, spec, tau, 0), capacity),
        trajectory_loss=jnp.zeros(()),
        key_model=trajectory if rules.reencodes else None,
    )


def _pending_key(
    rules: StorageRules, spec: Spec, tau: LSTMState, iteration: Int[Array, ""] | int
) -> PendingKey:
    """The key of the step that an iteration took in each environment."""
    source = iteration * spec.num_envs + jnp.arange(spec.num_envs)
    return PendingKey(tau.h, source if rules.reencodes else None)


# Planning


class Plan(NamedTuple):
    """Predicted trajectory and reward of every action."""

    tau: LSTMState
    """[B A H], after the action"""
    reward: Float[Array, "B A"]


def plan(
    state: EpisodicState, features: Float[Array, "B S"], tau: LSTMState, num_actions: int
) -> Plan:
    """T_phi([s, a], tau) and r_phi(s, a) for every action."""
    next_tau = predict_trajectories(state, features, tau, num_actions)
    return Plan(next_tau, predict_rewards(state, features, num_actions))


def predict_trajectories(
    state: EpisodicState, features: Float[Array, "B S"], tau: LSTMState, num_actions: int
) -> LSTMState:
    """T_phi([s, a], tau) for every action, [B A H]."""

    model = state.key_model or state.trajectory_model

    def one_action(features, tau, action):
        return model(tau, trajectory_model.state_action(features, action, num_actions))

    all_actions = jax.vmap(one_action, in_axes=(None, None, 0))
    return jax.vmap(all_actions, in_axes=(0, 0, None))(features, tau, jnp.arange(num_actions))


def predict_rewards(
    state: EpisodicState, features: Float[Array, "B S"], num_actions: int
) -> Float[Array, "B A"]:
    """r_phi(s, a) for every action."""

    def one_action(action):
        actions = jnp.full(len(features), action)
        return jax.vmap(state.reward_model)(
            trajectory_model.state_action(features, actions, num_actions)
        )

    return jax.vmap(one_action, out_axes=1)(jnp.arange(num_actions))


def select(plan: Plan, action: Int[Array, "B"]) -> LSTMState:
    """The planned trajectory of the action taken."""
    return jax.tree.map(lambda x: x[jnp.arange(x.shape[0]), action], plan.tau)


# The memory


def lookup(
    state: EpisodicState, config: EpisodicControlConfig, tau: Float[Array, "Q H"]
) -> Neighbours:
    """Neighbours enough for reads and writes."""
    k = max(config.num_neighbours, config.num_write_neighbours or 0)
    return mem.lookup(state.memory, tau, k)


def read(
    state: EpisodicState,
    config: EpisodicControlConfig,
    near: Neighbours,
    use_max: Bool[Array, "#Q"] | bool = False,
) -> Float[Array, "Q"]:
    """The memory's value, by the mean or the maximum of K neighbours."""
    return mem.read(state.memory, mem.nearest(near, config.num_neighbours), use_max)


def read_batches(
    state: EpisodicState,
    config: EpisodicControlConfig,
    reached: Float[Array, "B H"],
    planned: Float[Array, "B A H"],
    use_max: Bool[Array, "U"],
) -> tuple[Float[Array, "B"], Float[Array, "B A"]]:
    """The memory's values of U batches of trajectories, by one search and U read rules."""
    count, num_actions, dim = planned.shape
    near = lookup(state, config, jnp.concatenate([reached, planned.reshape(-1, dim)]))
    batch_size = count // len(use_max)
    rules = [jnp.repeat(use_max, n) for n in (batch_size, batch_size * num_actions)]
    values = read(state, config, near, jnp.concatenate(rules))
    return values[:count], values[count:].reshape(count, num_actions)


def draw_read_rule(p_read: float, uniform: Float[Array, "*U"]) -> Bool[Array, "*U"]:
    """Whether to read the maximum; drawn once per decision, so that argmax compares alike."""
    return uniform >= p_read


def plan_values(
    state: EpisodicState,
    config: Any,
    spec: Spec,
    features: Float[Array, "E S"],
    episode_start: Bool[Array, "E"],
    rules: StorageRules = PAPER_RULES,
) -> tuple[Plan, Float[Array, "E A"], LSTMState]:
    """For greedy play: the plan, Q_MBEC by the mean rule, and tau before the action."""
    tau = reset_where(state.tau, episode_start)
    planned = plan(state, features, tau, spec.num_actions)
    near = lookup(state, config, planned.tau.h.reshape(-1, config.trajectory_dim))
    value = read(state, config, near).reshape(planned.reward.shape)
    return planned, q_values(config, rules, planned, value), tau


def q_values(
    config: Any, rules: StorageRules, plan: Plan, value: Float[Array, "B A"]
) -> Float[Array, "B A"]:
    """Q_MBEC of the planned trajectories, from their value in the memory."""
    return value if rules.includes_reward else plan.reward + config.gamma * value  # Eq. 6


# One step of Algorithm 1


class StepResult(NamedTuple):
    """What the last actions led to, and the features of the current states."""

    features: Float[Array, "E S"]
    reward: Float[Array, "E"]
    done: Bool[Array, "E"]
    terminal: Bool[Array, "E"]


class StepUniforms(NamedTuple):
    """Random numbers of one step, uniform in [0, 1)."""

    read_rule: Float[Array, ""]
    refine: Float[Array, "E"]
    explore: Float[Array, "2 E"]


def draw_uniforms(key: Key[Array, ""], num_envs: int) -> StepUniforms:
    """All random numbers of a step, from one draw."""
    uniforms = jax.random.uniform(key, (1 + 3 * num_envs,))
    explore = uniforms[1 + num_envs :].reshape(2, -1)
    return StepUniforms(uniforms[0], uniforms[1 : 1 + num_envs], explore)


class Decision(NamedTuple):
    """What a step of episodic control offers to the choice of an action."""

    tau: LSTMState
    """before the action"""
    plan: Plan
    q: Float[Array, "E A"]
    """Q_MBEC (Eq. 6)"""


def episodic_step(
    state: EpisodicState,
    config: Any,
    spec: Spec,
    result: StepResult,
    step: Int[Array, ""],
    uniforms: StepUniforms,
    rules: StorageRules = PAPER_RULES,
) -> tuple[EpisodicState, Decision]:
    """Algorithm 1 but for the choice: plan (Eq. 6), refine (Eq. 3, 4), write memories (Eq. 2)."""
    num_envs, num_actions = spec.num_envs, spec.num_actions
    has_step = state.episode_step > 0
    chunk_is_full = state.episode_step % config.chunk == 0
    if config.store_final:
        chunk_is_full |= result.done
    key = _pending_key(rules, spec, state.tau, step - 1)
    pending = state.pending
    if rules.includes_reward:
        pending = accumulator.append(pending, key, chunk_is_full & has_step)
        pending = accumulator.add_reward(pending, result.reward, config.gamma)
    else:
        pending = accumulator.add_reward(pending, result.reward, config.gamma)
        pending = accumulator.append(pending, key, chunk_is_full & has_step)
    tau = reset_where(state.tau, result.done)
    planned = plan(state, result.features, tau, num_actions)

    num_writes = 1 if rules == PAPER_RULES else WRITES_PER_STEP
    oldest_tau = accumulator.peek(pending, num_writes).entry.tau.reshape(num_envs * num_writes, -1)
    planned_tau = planned.tau.h.reshape(num_envs * num_actions, -1)
    near = lookup(state, config, jnp.concatenate([planned_tau, tau.h, oldest_tau, state.tau.h]))
    sizes = (num_envs * num_actions, num_envs, num_envs * num_writes, num_envs)
    near_planned, near_current, near_oldest, near_reached = mem.split(near, sizes)
    use_max = draw_read_rule(config.p_read, uniforms.read_rule)
    value = read(state, config, near_planned, use_max).reshape(num_envs, num_actions)
    q = q_values(config, rules, planned, value)
    best_q = jnp.max(mask_actions(spec, q), axis=-1)  # Eq. 3

    num_written = config.num_write_neighbours or config.num_neighbours
    is_refined = uniforms.refine < config.p_refine
    if rules.includes_reward:
        # Where an episode was truncated `best_q` is of the next one: there the memory's own value
        # of the last step tells what would have followed (0 while it is empty).
        followed = (read(state, config, near_reached) - result.reward) / jnp.maximum(
            config.gamma, 1e-6
        )
        next_value = jnp.where(result.done, followed, best_q)
        next_value = jnp.where(result.terminal, 0.0, next_value)
        near_refined, refined = near_reached, result.reward + config.gamma * next_value
        is_refined &= has_step
    else:
        next_value = jnp.where(result.terminal, 0.0, read(state, config, near_reached))
        near_refined, refined = near_current, best_q
    memory = mem.refine(
        state.memory, mem.nearest(near_refined, num_written), refined, WRITE_LR, is_refined
    )

    pending = accumulator.close(pending, result.done, next_value, rules.n_step)
    closed = accumulator.peek(pending, num_writes)
    source = closed.entry.source
    memory = mem.write(
        memory,
        mem.nearest(near_oldest, num_written),
        oldest_tau,
        closed.returns.ravel(),
        WRITE_LR,
        closed.mask.ravel(),
        step,
        source=None if source is None else source.ravel(),
    )
    pending = accumulator.drop(pending, jnp.sum(closed.mask, axis=-1))
    state = state._replace(memory=memory, pending=pending)
    return state, Decision(tau, planned, q)


def refine_past(
    state: EpisodicState,
    config: Any,
    spec: Spec,
    reached: StepResult,
    tau: LSTMState,
    rules: StorageRules,
    use_max: Bool[Array, ""],
) -> EpisodicState:
    """Refines the memory at past trajectories, from what their last steps led to.

    Repeated over all of experience this is value iteration with a kernel.
    """
    planned = plan(state, reached.features, tau, spec.num_actions)
    count, num_actions = planned.reward.shape
    queries = jnp.concatenate([planned.tau.h.reshape(count * num_actions, -1), tau.h])
    near_planned, near_tau = mem.split(lookup(state, config, queries), (count * num_actions, count))
    value = read(state, config, near_planned, use_max).reshape(count, num_actions)
    best_q = jnp.max(mask_actions(spec, q_values(config, rules, planned, value)), axis=-1)
    refined = jnp.where(reached.terminal, 0.0, best_q)
    if rules.includes_reward:
        refined = reached.reward + config.gamma * refined
    num_written = config.num_write_neighbours or config.num_neighbours
    memory = mem.refine(state.memory, mem.nearest(near_tau, num_written), refined, WRITE_LR)
    return state._replace(memory=memory)


def append_action(
    state: EpisodicState, decision: Decision, action: Int[Array, "E"], done: Bool[Array, "E"]
) -> EpisodicState:
    """The trajectories with the actions taken."""
    return state._replace(
        prev_tau=decision.tau,
        tau=select(decision.plan, action),
        episode_step=jnp.where(done, 0, state.episode_step) + 1,
    )


def policy_state(state: EpisodicState) -> EpisodicState:
    """The part of the state that greedy play needs."""
    return state._replace(trajectory_opt_state=None, reward_opt_state=None, pending=None)

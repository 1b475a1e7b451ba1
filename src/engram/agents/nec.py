"""Neural episodic control (Pritzel et al. 2017): learned keys and a dictionary per action."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from engram import replay_buffer
from engram.agents import common
from engram.agents.common import CommonConfig, ReplayConfig
from engram.config import Count, Positive, Probability
from engram.encoders import EncoderName
from engram.episodic import accumulator, dnd
from engram.episodic.accumulator import ClosedReturns, PendingReturns
from engram.episodic.memory import Memory
from engram.networks import Network, init_params, make_network, mask_actions
from engram.optim import clip_norm
from engram.periodic import periodically
from engram.types import Metrics, Spec, TimeStep


class NStepTransition(NamedTuple):
    """A step in replay; its N-step return is known later than its observation and action."""

    obs: Any  # Float[Array, "*B S"] or FrameBuffer
    action: Int[Array, "*B"]
    n_step_return: Float[Array, "*B"]
    is_known: Float[Array, "*B"]
    """1 once the return is known, else 0"""


class PendingStep(NamedTuple):
    """What is written to dictionary and replay once a step's return is known."""

    key: Float[Array, "*E D"]
    action: Int[Array, "*E"]
    iteration: Int[Array, "*E"]


class Lookup(NamedTuple):
    """What a value is computed from; all of it is trained."""

    embedding: Network
    keys: Float[Array, "B K D"]
    values: Float[Array, "B K"]


class State(NamedTuple):
    embedding: Network
    opt_state: PyTree
    dnd: Memory
    replay: NStepTransition
    pending: PendingReturns
    loss: Float[Array, ""]


@dataclass(frozen=True)
class NEC(ReplayConfig, CommonConfig):
    """Acts by a differentiable neural dictionary of N-step returns over learned keys."""

    train_frequency: Count = 4
    """environment steps between two updates"""
    buffer_size: Count = 100_000
    """transitions in the replay buffer"""
    adam_eps: Positive = 1e-8
    """epsilon of Adam"""
    learning_rate: Positive = 5e-4
    """of Adam, for the embedding"""
    anneal_lr: bool = False
    """decay the learning rate linearly to 0 over the run"""
    hidden_size: Count = 64
    """units of the embedding network's hidden layer"""
    encoder: EncoderName = "nature"
    """for images: the paper's four convolutions, the three of Mnih et al. (2015), or the residual
    network of IMPALA with once, twice or four times its channels"""
    key_size: Count = 64
    """size of a key"""
    num_neighbours: Count = 50
    """K, entries that a value is read from"""
    memory_size: Count = 500_000
    """slots per action"""
    kernel_delta: Positive = 1e-3
    """delta of the kernel 1 / (d^2 + delta)"""
    n_step: Count = 100
    """N, rewards in a return before it bootstraps"""
    write_lr: Probability = 0.1
    """alpha, step size of a known key's value towards a new return"""
    dnd_lr: Positive = 0.1
    """learning rate of the dictionary's keys and values"""

    def __post_init__(self):
        super().__post_init__()
        common.check_neighbours(self, "num_neighbours")

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        common.check_buffer_size(self, spec, 3 * self.n_step, f"three times n_step ({self.n_step})")
        sizes = self.hidden_size, self.key_size
        build = partial(make_network, spec, self.encoder, sizes)
        embedding = init_params(build, key)
        zeros, count = jnp.zeros(spec.num_envs), jnp.zeros(spec.num_envs, jnp.int32)
        entry = PendingStep(jnp.zeros((spec.num_envs, self.key_size)), count, count)
        capacity, _ = dnd.capacity(self.memory_size, spec)
        return State(
            embedding=embedding,
            opt_state=common.adam(self, spec).init(embedding),
            dnd=dnd.init_dnd(spec.num_actions, capacity, self.key_size),
            replay=common.init_rows(
                self, spec, NStepTransition(common.zero_obs(spec), count, zeros, zeros)
            ),
            # At most 2 N wait: N open entries, and N that closed when an episode ended.
            pending=accumulator.init_pending(entry, 2 * self.n_step + 4),
            loss=jnp.zeros(()),
        )

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        num_envs = spec.num_envs
        obs = common.network_input(self, spec, common.obs_to_evaluate(self, spec, timestep))
        keys = jax.vmap(state.embedding)(obs)
        pending = accumulator.add_reward(state.pending, timestep.reward, self.gamma)
        closed = accumulator.peek(pending, dnd.WRITES_PER_STEP)
        writes = dnd.make_writes(closed, spec.num_actions)
        queries = jnp.concatenate([keys, writes.key])
        near = dnd.lookup(state.dnd, queries, self.num_neighbours, self.kernel_delta)
        near_read, near_written = dnd.split(near, (len(keys), len(writes.key)))
        memory, q = dnd.read_before_write(state.dnd, dnd.read_weighted(state.dnd, near_read))
        q = mask_actions(spec, q)
        _, eviction = dnd.capacity(self.memory_size, spec)
        memory = dnd.write(memory, near_written, writes, step, eviction, self.write_lr)
        if eviction == "lru":
            (near_current,) = dnd.split(near_read, (num_envs,))
            memory = dnd.touch(memory, near_current, step)

        q, reached_q = q[:num_envs], q[-num_envs:]
        epsilon = common.epsilon_schedule(self, spec, step)
        action = common.epsilon_greedy(q, epsilon, jax.random.uniform(key, (2, num_envs)))
        terminal = common.is_terminal(self, spec, timestep)
        bootstrap = jnp.where(terminal, 0.0, jnp.max(reached_q, axis=-1))
        pending = accumulator.drop(pending, jnp.sum(closed.mask, axis=-1))
        pending = accumulator.close(pending, timestep.done, bootstrap, self.n_step)
        entry = PendingStep(keys[:num_envs], action, jnp.full(num_envs, step))
        pending = accumulator.append(pending, entry)
        replay = self.store(state.replay, spec, closed, obs[:num_envs], action, timestep, step)
        metrics: Metrics = {
            "epsilon": epsilon,
            "q_max": jnp.mean(jnp.max(q, axis=-1)),
            "memory_size": jnp.sum(memory.size).astype(jnp.float32),
        }
        return state._replace(dnd=memory, replay=replay, pending=pending), action, metrics

    def store(
        self,
        replay: NStepTransition,
        spec: Spec,
        closed: ClosedReturns,
        obs: Shaped[Array, "E S"],
        action: Int[Array, "E"],
        timestep: TimeStep,
        step: Int[Array, ""],
    ) -> NStepTransition:
        """Replay with the current observation and action, and with returns that are now known."""
        if spec.frame_stack:
            stored_obs = replay_buffer.add_frame(replay.obs, timestep.observation, step)
        else:
            stored_obs = replay_buffer.add(replay.obs, obs, step)
        zeros = jnp.zeros(spec.num_envs)
        rest = self.fill_returns(replay, closed)._replace(obs=None)
        rest = replay_buffer.add(rest, NStepTransition(None, action, zeros, zeros), step)
        return rest._replace(obs=stored_obs)

    def fill_returns(self, replay: NStepTransition, closed: ClosedReturns) -> NStepTransition:
        """Writes known returns into their rows."""
        rows, num_envs = replay.n_step_return.shape
        row = jnp.where(closed.mask, closed.entry.iteration % rows, rows)  # masked: dropped
        index = row, jnp.arange(num_envs)[:, None]
        return replay._replace(
            n_step_return=replay.n_step_return.at[index].set(closed.returns, mode="drop"),
            is_known=replay.is_known.at[index].set(1.0, mode="drop"),
        )

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        def skip():
            slots = jnp.zeros((self.batch_size, self.num_neighbours), jnp.int32)
            index = jnp.zeros((self.batch_size, 1), jnp.int32), slots
            change = jnp.zeros((*slots.shape, self.key_size)), jnp.zeros(slots.shape)
            return (state.embedding, state.opt_state, state.loss), (index, *change)

        # The dictionary stays outside: a `cond` that returned it would copy it.
        learned, (index, keys, values) = periodically(
            partial(common.should_update, self, spec),
            step,
            lambda: self.update(state, spec, step, key),
            skip,
        )
        embedding, opt_state, loss = learned
        memory = state.dnd._replace(
            keys=state.dnd.keys.at[index].add(keys),
            values=state.dnd.values.at[index].add(values),
        )
        state = state._replace(embedding=embedding, opt_state=opt_state, loss=loss, dnd=memory)
        return state, {"loss": loss}

    def update(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        """One gradient step: the new embedding, and slots and changes of the dictionary."""
        uniforms = jax.random.uniform(key, (self.batch_size,))
        batch: NStepTransition = replay_buffer.sample(state.replay, step + 1, uniforms)
        keys = jax.vmap(state.embedding)(batch.obs)
        is_taken = jnp.arange(spec.num_actions)[:, None] == batch.action
        near = dnd.lookup(state.dnd, keys, self.num_neighbours, self.kernel_delta, is_taken)
        row = jnp.arange(self.batch_size)
        slots, weights = (x[batch.action, row] for x in (near.slots, near.weights))
        index = batch.action[:, None], slots
        lookup = Lookup(state.embedding, state.dnd.keys[index], state.dnd.values[index])
        loss, gradient = jax.value_and_grad(self.loss_fn)(lookup, weights > 0, batch)
        optimizer = common.adam(self, spec, step)
        updates, opt_state = optimizer.update(gradient.embedding, state.opt_state)
        embedding = jax.tree.map(jnp.add, state.embedding, updates)
        # The loss is a mean; the dictionary's is a sum of halves, so that its rate is per example.
        scale = -self.dnd_lr * jnp.sum(batch.is_known) / 2
        key_change = clip_norm(scale * gradient.keys, common.MAX_GRAD_NORM * self.dnd_lr)
        return (embedding, opt_state, loss), (index, key_change, scale * gradient.values)

    def loss_fn(
        self, lookup: Lookup, is_present: Bool[Array, "B K"], batch: NStepTransition
    ) -> Float[Array, ""]:
        """Mean squared error of the values read, over rows whose return is known."""
        keys = jax.vmap(lookup.embedding)(batch.obs)
        squared = jnp.sum((keys[:, None] - lookup.keys) ** 2, axis=-1)
        kernel = is_present / (squared + self.kernel_delta)
        total = jnp.maximum(jnp.sum(kernel, axis=-1), 1e-12)
        q = jnp.sum(kernel * lookup.values, axis=-1) / total
        error = batch.is_known * (batch.n_step_return - q) ** 2
        return jnp.sum(error) / jnp.maximum(jnp.sum(batch.is_known), 1)

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        return state, common.greedy_action(
            spec, self.q_values(state, spec, observation), epsilon, key
        )

    def memory(self, state: State) -> Memory:
        return state.dnd

    def policy_state(self, state: State) -> State:
        return state._replace(opt_state=None, replay=None, pending=None)

    def q_values(
        self, state: State, spec: Spec, observation: Shaped[Array, "E ..."]
    ) -> Float[Array, "E A"]:
        """The dictionary's value of each action."""
        keys = jax.vmap(state.embedding)(common.network_input(self, spec, observation))
        near = dnd.lookup(state.dnd, keys, self.num_neighbours, self.kernel_delta)
        return dnd.read_weighted(state.dnd, near)

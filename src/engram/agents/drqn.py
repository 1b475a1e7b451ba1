"""Deep recurrent Q-network (Hausknecht and Stone 2015), with LSTM states stored in replay."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from engram import replay_buffer
from engram.agents import common
from engram.agents.common import CommonConfig, ReplayConfig
from engram.batching import sequential_over_runs
from engram.config import Count, Positive, Probability, Range
from engram.encoders import EncoderName, make_encoder
from engram.networks import (
    LSTMState,
    RecurrentNetwork,
    init_params,
    obs_size,
    reset_where,
    zero_state,
)
from engram.optim import apply_gradients
from engram.periodic import periodically
from engram.targets import n_step_targets
from engram.types import Metrics, Spec, TimeStep


class RecurrentTransition(NamedTuple):
    """A step in replay with the LSTM's state before it; the next row follows in time."""

    obs: Any
    """[*B S]; in a buffer of frame stacks a `FrameBuffer`"""
    action: Int[Array, "*B"]
    lstm_state: LSTMState
    episode_start: Bool[Array, "*B"]
    reward: Float[Array, "*B"]
    terminal: Float[Array, "*B"]


class State(NamedTuple):
    q: RecurrentNetwork
    q_target: RecurrentNetwork
    opt_state: PyTree
    replay: RecurrentTransition
    lstm_state: LSTMState
    """after the current observation"""
    last_row: RecurrentTransition
    """whose reward is not known yet"""
    loss: Float[Array, ""]


@dataclass(frozen=True)
class DRQN(ReplayConfig, CommonConfig):
    """Q-learning with an LSTM, from sequences that start with the stored LSTM state."""

    supports_action_mask: ClassVar[bool] = False

    batch_size: Count = 16
    """sequences per gradient step"""
    train_frequency: Count = 2
    """environment steps between two updates"""
    learning_rate: Positive = 5e-4
    """of Adam"""
    anneal_lr: bool = False
    """decay the learning rate linearly to 0 over the run"""
    hidden_size: Count = 128
    """units of the layer before the LSTM"""
    lstm_size: Count = 128
    """units of the LSTM"""
    target_update_interval: Count = 100
    """environment steps between two copies of the network to its target"""
    target_tau: Probability = 1.0
    """share of the network in a target update; 1 copies it"""
    n_step: Count = 1
    """rewards in a TD target before it bootstraps; fewer at the end of a sequence"""
    adam_eps: Positive = 1e-8
    """epsilon of Adam"""
    encoder: EncoderName = "nature"
    """for images: the paper's four convolutions, the three of Mnih et al. (2015), or the residual
    network of IMPALA with once, twice or four times its channels"""
    sequence_length: Count = 8
    """transitions of a sequence in the loss; with 1, no gradient goes back in time"""
    burn_in: Annotated[int, Range(0)] = 0
    """transitions before these that only update the LSTM's state"""

    @property
    def num_rows(self) -> int:
        """Rows of a sequence, with the one after its last transition."""
        return self.burn_in + self.sequence_length + 1

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        frames = ", and as many as frames are stacked" if spec.frame_stack else ""
        reason = f"one more than burn_in and sequence_length together{frames}"
        common.check_buffer_size(self, spec, self.num_rows + spec.frame_stack, reason)
        sizes = obs_size(spec), self.hidden_size, self.lstm_size, spec.num_actions

        def build(key):
            return RecurrentNetwork(sizes, key, encoder=make_encoder(spec, self.encoder, key))

        q = init_params(build, key)
        zeros, action = jnp.zeros(spec.num_envs), jnp.zeros(spec.num_envs, jnp.int32)
        lstm_state = zero_state(spec.num_envs, self.lstm_size)
        episode_start = jnp.ones(spec.num_envs, bool)
        obs = common.zero_obs(spec)
        row = RecurrentTransition(obs, action, lstm_state, episode_start, zeros, zeros)
        return State(
            q=q,
            q_target=q,
            opt_state=common.adam(self, spec).init(q),
            replay=common.init_rows(self, spec, row),
            lstm_state=lstm_state,
            last_row=row._replace(obs=common.last_obs(spec, obs)),
            loss=jnp.zeros(()),
        )

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        obs = common.network_input(self, spec, timestep.observation)
        terminal = common.is_terminal(self, spec, timestep).astype(jnp.float32)
        row = state.last_row._replace(reward=timestep.reward, terminal=terminal)
        # At step 0 this writes the last row, which is overwritten before it can be sampled.
        replay = common.add_row(spec, state.replay, row, timestep, step)
        episode_start = timestep.done | (step == 0)
        before = reset_where(state.lstm_state, episode_start)
        after, q = state.q.one_step(before, obs)
        epsilon = common.epsilon_schedule(self, spec, step)
        action = common.epsilon_greedy(q, epsilon, jax.random.uniform(key, (2, spec.num_envs)))
        metrics: Metrics = {"epsilon": epsilon, "q_max": jnp.mean(jnp.max(q, axis=-1))}
        zeros = jnp.zeros(spec.num_envs)
        obs = common.last_obs(spec, obs)
        last_row = RecurrentTransition(obs, action, before, episode_start, zeros, zeros)
        return state._replace(replay=replay, lstm_state=after, last_row=last_row), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        def update():
            uniforms = jax.random.uniform(key, (self.batch_size,))
            batch = replay_buffer.sample_sequences(state.replay, step, self.num_rows, uniforms)
            loss, gradients = sequential_over_runs(
                self.loss_and_gradients, state.q, state.q_target, batch
            )
            optimizer = common.adam(self, spec, step)
            return *apply_gradients(optimizer, gradients, state.q, state.opt_state), loss

        def is_due(step):
            return common.should_update(self, spec, step) & (step >= self.num_rows)

        before = state.q, state.opt_state, state.loss
        q, opt_state, loss = periodically(is_due, step, update, lambda: before)
        q_target = common.update_target(self, spec, step, q, state.q_target)
        state = state._replace(q=q, q_target=q_target, opt_state=opt_state, loss=loss)
        return state, {"td_loss": loss}

    def loss_and_gradients(
        self, q: RecurrentNetwork, q_target: RecurrentNetwork, batch: RecurrentTransition
    ) -> tuple[Float[Array, ""], RecurrentNetwork]:
        next_q = self.q_values(q_target, batch)[1:]
        return jax.value_and_grad(self.loss_fn)(q, batch, next_q)

    def q_values(self, q: RecurrentNetwork, batch: RecurrentTransition) -> Float[Array, "T B A"]:
        """Values along sequences after their burn-in."""
        lstm_state = jax.tree.map(lambda x: x[0], batch.lstm_state)
        n = self.burn_in
        if n:
            states, _ = q(lstm_state, batch.obs[:n], batch.episode_start[:n])
            lstm_state = jax.tree.map(lambda x: lax.stop_gradient(x[-1]), states)
        return q(lstm_state, batch.obs[n:], batch.episode_start[n:])[1]

    def loss_fn(
        self, q: RecurrentNetwork, batch: RecurrentTransition, next_q: Float[Array, "T B A"]
    ) -> Float[Array, ""]:
        """Mean squared TD error after the burn-in.

        A truncated step is left out: the row after it belongs to another episode.
        """
        steps = jax.tree.map(lambda x: x[self.burn_in : -1], batch)
        has_successor = ~batch.episode_start[self.burn_in + 1 :] | (steps.terminal > 0)
        target = n_step_targets(
            steps.reward,
            steps.terminal,
            ~has_successor,
            jnp.max(next_q, axis=-1),
            self.gamma,
            self.n_step,
        )
        values = self.q_values(q, batch)[:-1]
        value = jnp.take_along_axis(values, steps.action[..., None], axis=-1)[..., 0]
        error = has_successor * (target - value) ** 2
        return jnp.sum(error) / jnp.maximum(jnp.sum(has_successor), 1)

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        obs = common.network_input(self, spec, observation)
        lstm_state, q = state.q.one_step(reset_where(state.lstm_state, episode_start), obs)
        return state._replace(lstm_state=lstm_state), common.greedy_action(spec, q, epsilon, key)

    def policy_state(self, state: State) -> State:
        return state._replace(q_target=None, opt_state=None, replay=None, last_row=None)

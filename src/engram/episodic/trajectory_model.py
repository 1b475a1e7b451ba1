"""The trajectory model T_phi with its losses, and the reward model (Section 3.1, Eq. 1 and 5)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from engram.heads import MLP
from engram.networks import LSTMState

CUE_NOISE = 0.1
"""standard deviation of a cue's noise, as a share of its norm"""


class TrajectoryModel(eqx.Module):
    """T_phi, an LSTM over state-action pairs, and G_omega, a linear map back to such a pair."""

    cell: eqx.nn.LSTMCell
    reconstruct: eqx.nn.Linear

    def __init__(
        self, num_features: int, num_actions: int, trajectory_dim: int, key: Key[Array, ""]
    ):
        cell_key, linear_key = jax.random.split(key)
        inputs = num_features + num_actions
        self.cell = eqx.nn.LSTMCell(inputs, trajectory_dim, key=cell_key)
        self.reconstruct = eqx.nn.Linear(trajectory_dim, inputs, key=linear_key)

    def __call__(self, tau: LSTMState, state_action: Float[Array, "X"]) -> LSTMState:
        """tau_t = T_phi([s_t, a_t], tau_t-1)."""
        return LSTMState(*self.cell(state_action, (tau.h, tau.c)))


class RewardModel(eqx.Module):
    """r_phi, the predicted reward of a state and an action."""

    network: MLP

    def __call__(self, state_action: Float[Array, "X"]) -> Float[Array, ""]:
        return self.network(state_action)[0]


def state_action(
    features: Float[Array, "*B S"], action: Int[Array, "*B"], num_actions: int
) -> Float[Array, "*B X"]:
    """[s, a] with the action as one-hot."""
    return jnp.concatenate([features, jax.nn.one_hot(action, num_actions)], axis=-1)


class RecallSample(NamedTuple):
    """The last chunk of one episode, and cues from all of it."""

    tau: LSTMState
    """LSTM state before the chunk"""
    chunk: Float[Array, "L X"]
    """the last L state-action pairs, newest last"""
    mask: Bool[Array, "L"]
    """pairs of this episode, which may be shorter than L"""
    cues: Float[Array, "Q X"]
    """past state-action pairs"""
    answers: Float[Array, "Q X"]
    """the pairs that followed the cues"""
    is_usable: Bool[Array, ""]
    """whether the episode has a pair with a successor"""


def add_noise(cue: Float[Array, "Q X"], key: Key[Array, ""]) -> Float[Array, "Q X"]:
    """Cues with Gaussian noise in proportion to their norm."""
    norm = jnp.linalg.norm(cue, axis=-1, keepdims=True)
    return cue + CUE_NOISE * norm * jax.random.normal(key, cue.shape)


def encode_chunk(model: TrajectoryModel, sample: RecallSample) -> tuple[LSTMState, LSTMState]:
    """tau after the chunk, and before each of its steps; gradients stop before the chunk."""

    def one_step(tau: LSTMState, step):
        pair, mask = step
        next_tau = model(tau, pair)
        return jax.tree.map(lambda new, old: jnp.where(mask, new, old), next_tau, tau), tau

    start = lax.stop_gradient(sample.tau)
    unroll = min(sample.chunk.shape[0], 10)
    return lax.scan(one_step, start, (sample.chunk, sample.mask), unroll=unroll)


def recall_loss(
    model: TrajectoryModel, sample: RecallSample, key: Key[Array, ""]
) -> Float[Array, ""]:
    """Trajectorial recall (TR): from tau_t and a noisy past pair, the pair after it (Eq. 1)."""
    tau, _ = encode_chunk(model, sample)
    cues = add_noise(sample.cues, key)
    answers = jax.vmap(lambda cue: model.reconstruct(model(tau, cue).h))(cues)
    return jnp.mean(jnp.sum((answers - sample.answers) ** 2, axis=-1))


def prediction_loss(
    model: TrajectoryModel, sample: RecallSample, key: Key[Array, ""]
) -> Float[Array, ""]:
    """Transition prediction (TP): from tau_t-1 and the noisy current pair, the next (appendix)."""
    _, taus = encode_chunk(model, sample)
    cues = add_noise(sample.chunk[:-1], key)
    taus = jax.tree.map(lambda x: x[:-1], taus)
    answers = jax.vmap(lambda tau, cue: model.reconstruct(model(tau, cue).h))(taus, cues)
    error = jnp.sum((answers - sample.chunk[1:]) ** 2, axis=-1)
    mask = sample.mask[:-1]
    return jnp.sum(error * mask) / jnp.maximum(jnp.sum(mask), 1)


def reward_loss(
    model: RewardModel, inputs: Float[Array, "B X"], reward: Float[Array, "B"]
) -> Float[Array, ""]:
    """Mean squared error of the predicted rewards (Eq. 5)."""
    return jnp.mean((reward - jax.vmap(model)(inputs)) ** 2)

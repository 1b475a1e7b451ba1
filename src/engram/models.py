"""The trajectory model with its losses of recall and prediction, and the reward model (Section 3.1, Eq. 1 and 5, appendix)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from engram.networks import MLP, Carried

Trajectory = Carried
"""What the LSTM carries of an episode so far; `h` is the trajectory's vector tau."""


class TrajectoryModel(eqx.Module):
    """T_phi, an LSTM over state-action pairs, and G_omega, a linear map back to such a pair."""

    cell: eqx.nn.LSTMCell
    reconstruct: eqx.nn.Linear

    def __init__(self, states: int, actions: int, hidden: int, key: Key[Array, ""]):
        cell_key, linear_key = jax.random.split(key)
        self.cell = eqx.nn.LSTMCell(states + actions, hidden, key=cell_key)
        self.reconstruct = eqx.nn.Linear(hidden, states + actions, key=linear_key)

    def __call__(self, tau: Trajectory, pair: Float[Array, "X"]) -> Trajectory:
        """tau_t = T_phi([s_t, a_t], tau_t-1)."""
        return Trajectory(*self.cell(pair, (tau.h, tau.c)))


class RewardModel(eqx.Module):
    """r_phi, the reward of a state and an action."""

    network: MLP

    def __call__(self, pair: Float[Array, "X"]) -> Float[Array, ""]:
        return self.network(pair)[0]


def pairs(state: Float[Array, "*B S"], action: Int[Array, "*B"], actions: int) -> Float[Array, "*B X"]:
    """[s, a] with the action as one-hot."""
    return jnp.concatenate([state, jax.nn.one_hot(action, actions)], axis=-1)


def noisy(pair: Float[Array, "Q X"], key: Key[Array, ""]) -> Float[Array, "Q X"]:
    """A cue blurred by Gaussian noise of a tenth of its norm."""
    return pair + 0.1 * jnp.linalg.norm(pair, axis=-1, keepdims=True) * jax.random.normal(key, pair.shape)


class Stretch(NamedTuple):
    """The last chunk of one episode, and cues drawn from all of it."""

    tau: Trajectory
    """before the chunk"""
    chunk: Float[Array, "L X"]
    """the newest L pairs, the last of them last"""
    valid: Bool[Array, "L"]
    """which belong to this episode: it may be younger than L"""
    cues: Float[Array, "Q X"]
    """past pairs drawn at random"""
    answers: Float[Array, "Q X"]
    """the pairs that followed the cues"""
    usable: Bool[Array, ""]
    """whether the episode is old enough to have a pair with a successor"""


def encode_chunk(model: TrajectoryModel, stretch: Stretch) -> tuple[Trajectory, Trajectory]:
    """The trajectory after the chunk, and before each of its steps; gradients flow through this chunk only."""

    def advance(tau: Trajectory, step):
        pair, valid = step
        after = model(tau, pair)
        return jax.tree.map(lambda new, old: jnp.where(valid, new, old), after, tau), tau

    length = stretch.chunk.shape[0]
    return lax.scan(advance, lax.stop_gradient(stretch.tau), (stretch.chunk, stretch.valid), unroll=min(length, 10))


def recall_loss(model: TrajectoryModel, stretch: Stretch, key: Key[Array, ""]) -> Float[Array, ""]:
    """Trajectorial recall: from tau_t and a noisy past pair, the pair that followed it (Eq. 1)."""
    tau, _ = encode_chunk(model, stretch)
    answer = jax.vmap(lambda cue: model.reconstruct(model(tau, cue).h))(noisy(stretch.cues, key))
    return jnp.mean(jnp.sum((answer - stretch.answers) ** 2, axis=-1))


def prediction_loss(model: TrajectoryModel, stretch: Stretch, key: Key[Array, ""]) -> Float[Array, ""]:
    """Transition prediction: from tau_t-1 and the noisy present pair, the next one (appendix, "Transition Prediction loss")."""
    _, before = encode_chunk(model, stretch)
    blurred = noisy(stretch.chunk[:-1], key)
    present = jax.tree.map(lambda x: x[:-1], before)
    answer = jax.vmap(lambda tau, cue: model.reconstruct(model(tau, cue).h))(present, blurred)
    error = jnp.sum((answer - stretch.chunk[1:]) ** 2, axis=-1)
    return jnp.sum(error * stretch.valid[:-1]) / jnp.maximum(jnp.sum(stretch.valid[:-1]), 1)


def reward_loss(model: RewardModel, inputs: Float[Array, "B X"], reward: Float[Array, "B"]) -> Float[Array, ""]:
    """The mean squared error of predicted rewards (Eq. 5)."""
    return jnp.mean((reward - jax.vmap(model)(inputs)) ** 2)

"""Re-encoding: the keys of all memories are computed anew from the steps that they came from.

Keys are made by networks and statistics that change with experience. Here they are made by a copy
that stands still. Now and then, each time experience has grown by half, the copy is renewed and so
is every key, so that at any time all keys are of one encoder.
"""

from itertools import takewhile
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from engram.devices import platform
from engram.episodic.control import EpisodicState
from engram.episodic.image_encoder import ImageEncoder, num_features
from engram.episodic.trajectory_model import state_action
from engram.networks import LSTMState, reset_where
from engram.replay_buffer import Transition
from engram.types import Spec

MAX_DEVIATIONS = 5.0
"""clipping range of standardized features"""
MIN_AUTOCORRELATION = 0.5
"""of features that are not taken for noise"""
FIRST_STEP = 16
GROWTH = 1.5
"""keys are re-encoded after 16 iterations, after half as many more, and so on"""
BLOCK, IMAGE_BLOCK = 64, 8
"""iterations that are encoded together, since loops of unknown length are slow on a GPU; of images
fewer, since their convolutions take memory"""


class InputEncoder(NamedTuple):
    """Makes the trajectory model's inputs of observations."""

    encoder: ImageEncoder | None
    mean: Float[Array, "F"]
    weight: Float[Array, "F"]

    def __call__(self, obs: Shaped[Array, "*B S"]) -> Float[Array, "*B F"]:
        deviations = (_encode(self.encoder, obs) - self.mean) * self.weight
        return jnp.clip(deviations, -MAX_DEVIATIONS, MAX_DEVIATIONS)


def init_inputs(spec: Spec, encoder: ImageEncoder | None) -> InputEncoder:
    """Passes features on as they are, until there is experience."""
    size = num_features(spec, encoder)
    return InputEncoder(encoder, jnp.zeros(size), jnp.ones(size))


def _encode(encoder: ImageEncoder | None, obs: Shaped[Array, "*B S"]) -> Float[Array, "*B F"]:
    if encoder is None:
        return obs
    flat = jax.vmap(encoder)(obs.reshape(-1, obs.shape[-1]))
    return flat.reshape(*obs.shape[:-1], -1)


def schedule(num_iterations: int) -> list[int]:
    """The iterations after which keys are re-encoded."""
    steps = (round(FIRST_STEP * GROWTH**n) for n in range(100))
    return list(takewhile(lambda step: step < num_iterations, steps))


class FeatureSums(NamedTuple):
    """Sums of features over steps, and over pairs of steps that follow each other."""

    origin: Float[Array, "F"]
    """what is subtracted from features, which far from 0 would leave no digits to their squares"""
    count: Float[Array, ""]
    total: Float[Array, "F"]
    squares: Float[Array, "F"]
    num_pairs: Float[Array, ""]
    pair_totals: Float[Array, "2 F"]
    """of the first and of the second step of each pair"""
    pair_squares: Float[Array, "2 F"]
    products: Float[Array, "F"]


def persistence_weights(
    sums: FeatureSums, is_weighed: bool = True
) -> tuple[Float[Array, "F"], Float[Array, "F"]]:
    """Mean and weight of each feature: its autocorrelation over one step, per standard deviation.

    What does not outlast a step is noise to a trajectory, so an autocorrelation below one half
    counts as 0. The others are lowered by two standard errors, since few pairs say little. Without
    `is_weighed`, the weight is one per standard deviation.
    """
    mean, std = _mean_and_std(sums.count, sums.total, sums.squares)
    varies = std > 1e-6 * jnp.abs(sums.origin) + 1e-8  # less is rounding
    # The two steps of a pair have means of their own: on its way to a goal a feature may grow.
    pair_means, pair_stds = _mean_and_std(sums.num_pairs, sums.pair_totals, sums.pair_squares)
    covariance = sums.products / jnp.maximum(sums.num_pairs, 1) - pair_means[0] * pair_means[1]
    has_correlation = jnp.min(pair_stds, axis=0) > 1e-3 * std
    scale = jnp.where(has_correlation, pair_stds[0] * pair_stds[1], 1.0)
    autocorrelation = jnp.where(has_correlation, covariance / scale, 0.0)
    weight = jnp.clip(autocorrelation - 2 / jnp.sqrt(jnp.maximum(sums.num_pairs, 1)), 0.0, 1.0)
    weight = jnp.where(autocorrelation > MIN_AUTOCORRELATION, weight, 0.0)
    # Where nothing persists, as in episodes of one step, all features are taken alike.
    persists = jnp.any((weight > 0) & varies)
    weight = jnp.where(persists & is_weighed, weight, 1.0)
    return sums.origin + mean, jnp.where(varies, weight / jnp.where(varies, std, 1.0), 0.0)


def _mean_and_std(
    count: Float[Array, ""], total: Float[Array, "*B F"], squares: Float[Array, "*B F"]
) -> tuple[Float[Array, "*B F"], Float[Array, "*B F"]]:
    mean = total / jnp.maximum(count, 1)
    variance = squares / jnp.maximum(count, 1) - mean**2
    return mean, jnp.sqrt(jnp.maximum(variance, 0.0))


def feature_sums(
    encoder: ImageEncoder | None, replay: Transition, first: Int[Array, ""], step: Int[Array, ""]
) -> FeatureSums:
    """Sums over the steps of iterations `first` to `step` - 1, which replay holds."""
    rows, size = replay.action.shape[0], _block_size(encoder)
    origin = _encode(encoder, replay.obs[first % rows])[0]

    def add_block(block, sums):
        # The step before the block is the first of its first pair.
        iteration = first + block * size + jnp.arange(-1, size)
        row = iteration % rows
        is_held = (iteration >= first) & (iteration < step)
        is_pair = is_held[:-1, None] & is_held[1:, None] & (replay.done[row[:-1]] == 0)
        features = _encode(encoder, replay.obs[row]) - origin
        steps = jnp.where(is_held[1:, None, None], features[1:], 0.0)
        pairs = jnp.stack([features[:-1], features[1:]])
        pairs = jnp.where(is_pair[..., None], pairs, 0.0)
        return FeatureSums(
            origin=origin,
            count=sums.count + steps.shape[1] * jnp.sum(is_held[1:]),
            total=sums.total + jnp.sum(steps, axis=(0, 1)),
            squares=sums.squares + jnp.sum(steps**2, axis=(0, 1)),
            num_pairs=sums.num_pairs + jnp.sum(is_pair),
            pair_totals=sums.pair_totals + jnp.sum(pairs, axis=(1, 2)),
            pair_squares=sums.pair_squares + jnp.sum(pairs**2, axis=(1, 2)),
            products=sums.products + jnp.sum(pairs[0] * pairs[1], axis=(0, 1)),
        )

    zero, zeros = jnp.zeros(()), jnp.zeros_like(origin)
    pair_zeros = jnp.zeros((2, *origin.shape))
    sums = FeatureSums(origin, zero, zeros, zeros, zero, pair_zeros, pair_zeros, zeros)
    return lax.fori_loop(0, _num_blocks(first, step, size), add_block, sums)


def _block_size(encoder: ImageEncoder | None) -> int:
    return BLOCK if encoder is None else IMAGE_BLOCK


def _num_blocks(first: Int[Array, ""], step: Int[Array, ""], size: int) -> Int[Array, ""]:
    return (step - first + size - 1) // size


class Reencoded(NamedTuple):
    """What re-encoding renews."""

    episodic: EpisodicState
    inputs: InputEncoder
    tau: LSTMState
    """of replay, before each step"""
    next_tau: LSTMState


def reencode(
    episodic: EpisodicState,
    encoder: ImageEncoder | None,
    replay: Transition,
    obs: Shaped[Array, "E S"],
    action: Int[Array, "E"],
    spec: Spec,
    step: Int[Array, ""],
    is_weighed: bool,
) -> Reencoded:
    """Renews the input encoder, the model of keys, and all trajectories and keys made by them.

    `obs` and `action` are of the step that is not in replay yet. A memory whose step has left
    replay keeps its key.
    """
    rows, num_envs = replay.action.shape
    size = _block_size(encoder)
    model = episodic.trajectory_model
    first = jnp.maximum(step - rows, 0)
    sums = feature_sums(encoder, replay, first, step)
    inputs = InputEncoder(encoder, *persistence_weights(sums, is_weighed))

    def one_step(tau: LSTMState, features, action) -> LSTMState:
        return jax.vmap(model)(tau, state_action(features, action, spec.num_actions))

    def encode_row(tau, row):
        features, action, done, is_held = row
        next_tau = one_step(tau, features, action)
        select = lambda new, old: jnp.where(is_held, new, old)  # noqa: E731
        return jax.tree.map(select, reset_where(next_tau, done > 0), tau), (tau, next_tau)

    def encode_block(block, carry):
        tau, *stored = carry
        iteration = first + block * size + jnp.arange(size)
        row, is_held = iteration % rows, iteration < step
        block_rows = inputs(replay.obs[row]), replay.action[row], replay.done[row], is_held
        unroll = size if platform() == "gpu" else 8
        tau, encoded = lax.scan(encode_row, tau, block_rows, unroll=unroll)
        place = jnp.where(is_held, row, rows)  # masked: dropped
        set_rows = lambda x, new: x.at[place].set(new, mode="drop")  # noqa: E731
        return tau, *jax.tree.map(set_rows, tuple(stored), encoded)

    start = jax.tree.map(lambda x: x[first % rows], replay.tau)
    carry = start, replay.tau, replay.next_tau
    prev_tau, taus, next_taus = lax.fori_loop(
        0, _num_blocks(first, step, size), encode_block, carry
    )

    def keys(source: Int[Array, "*N"], old: Float[Array, "*N H"]) -> Float[Array, "*N H"]:
        iteration, env = source // num_envs, source % num_envs
        is_stored = (iteration >= first) & (iteration < step)
        return jnp.where(is_stored[..., None], next_taus.h[iteration % rows, env], old)

    memory, pending = episodic.memory, episodic.pending
    pending_key = pending.entry._replace(tau=keys(pending.entry.source, pending.entry.tau))
    episodic = episodic._replace(
        memory=memory._replace(keys=keys(jnp.asarray(memory.source), memory.keys)),
        pending=pending._replace(entry=pending_key),
        prev_tau=prev_tau,
        tau=one_step(prev_tau, inputs(obs), action),
        key_model=model,
    )
    return Reencoded(episodic, inputs, taus, next_taus)

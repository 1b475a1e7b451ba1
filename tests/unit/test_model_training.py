"""The trajectory model is trained on the newest chunks of current episodes, every L steps."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_rollout import AGENT, FIVE_STEPS, SPEC, TERMINATED, rollout

from engram.episodic import trajectory_model
from engram.episodic.control import MAX_GRAD_NORM
from engram.episodic.model_training import NUM_CUES, recall_samples, train_trajectory_model
from engram.networks import LSTMState
from engram.optim import gradient_step, make_optimizer
from engram.replay_buffer import Transition

LOSSES = {
    "recall": trajectory_model.recall_loss,
    "prediction": trajectory_model.prediction_loss,
}


@cache
def train_program(agent, spec):
    """The episodic state after training, by a state of MBEC, an iteration and a key."""
    return jax.jit(
        lambda state, step, key: train_trajectory_model(
            state.episodic, agent, spec, state.replay, step, key
        )
    )


@cache
def sample_program(agent, spec):
    """Samples and noise keys of a training."""

    @jax.jit
    def compute(state, step, key):
        cue_key, noise_key, _ = jax.random.split(key, 3)
        length = state.episodic.episode_step - 1
        samples = recall_samples(agent, spec, length, state.replay, step, cue_key)
        return samples, jax.random.split(noise_key, spec.num_envs)

    return compute


def key_with_coin(happens):
    """A key with which a training that is due happens, or does not."""
    for seed in range(100):
        key = jax.random.key(seed)
        if bool(jax.random.bernoulli(jax.random.split(key, 3)[2], 0.5)) == happens:
            return key
    raise AssertionError("no key")


def assert_equal(after, before):
    for a, b in zip(*map(jax.tree.leaves, (after, before)), strict=True):
        np.testing.assert_array_equal(a, b)


def largest_change(after, before):
    pairs = zip(*map(jax.tree.leaves, (after, before)), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


# Samples

ROWS, CHUNK = 8, 3
SAMPLES = jax.jit(
    lambda *inputs: recall_samples(replace(AGENT, chunk=CHUNK), replace(SPEC, shape=(1,)), *inputs)
)


@settings(max_examples=60)
@given(step=st.integers(1, 60), length=st.integers(0, 70), seed=st.integers(0, 99))
def test_samples_are_of_the_current_episode(step, length, seed):
    """Observations are iterations: the chunk is the newest, and answers follow their cues."""
    length = min(length, step)
    iterations = np.full(ROWS, -1.0, np.float32)
    for iteration in range(step):
        iterations[iteration % ROWS] = iteration
    row = jnp.array(iterations)[:, None]
    obs, tau = row[..., None], LSTMState(row[..., None], -row[..., None])
    replay = Transition(obs, jnp.zeros((ROWS, 1), jnp.int32), row, obs, row, row, tau, tau)
    samples = SAMPLES(jnp.array([length]), replay, jnp.int32(step), jax.random.key(seed))
    sample = jax.tree.map(lambda x: np.asarray(x)[0], samples)
    stored = min(length, ROWS)
    assert bool(sample.is_usable) == (stored >= 2)
    if stored < 2:
        return
    recent = min(stored, CHUNK)
    assert sample.mask.tolist() == [False] * (CHUNK - recent) + [True] * recent
    assert sample.chunk[sample.mask, 0].tolist() == list(range(step - recent, step))
    assert sample.tau.h.tolist() == [step - recent]
    assert sample.tau.c.tolist() == [recent - step]
    assert sample.cues.shape[0] == NUM_CUES
    assert (sample.cues[:, 0] >= step - stored).all()
    assert (sample.cues[:, 0] <= step - 2).all()
    np.testing.assert_array_equal(sample.answers[:, 0], sample.cues[:, 0] + 1)


# Training


@pytest.fixture(scope="module")
def three_steps():
    """A state of MBEC at iteration 8, the third step of its second episode."""
    return rollout(AGENT, SPEC, FIVE_STEPS, extra=3).states[-1]


@pytest.mark.parametrize("loss", ["recall", "prediction", "none"])
def test_the_trajectory_model_is_trained_every_chunk_by_the_chosen_loss(loss, three_steps):
    agent, state, key = replace(AGENT, trajectory_loss=loss), three_steps, key_with_coin(True)
    train = train_program(agent, SPEC)
    before = state.episodic

    def change(step):
        trained = train(state, jnp.int32(step), key)
        return largest_change(trained.trajectory_model, before.trajectory_model)

    assert change(7) == 0  # L is 2
    if loss == "none":
        assert change(8) == 0
        return
    assert change(8) == pytest.approx(agent.trajectory_lr, rel=0.01)  # Adam's first step
    samples, noise_keys = sample_program(agent, SPEC)(state, jnp.int32(8), key)
    sample = jax.tree.map(lambda x: x[0], samples)
    expected = jax.jit(LOSSES[loss])(before.trajectory_model, sample, noise_keys[0])
    trained = train(state, jnp.int32(8), key)
    assert float(trained.trajectory_loss) == pytest.approx(float(expected), rel=1e-5)


def test_a_training_happens_with_probability_one_half(three_steps):
    train, step = train_program(AGENT, SPEC), jnp.int32(8)
    losses = [
        float(train(three_steps, step, key).trajectory_loss)
        for key in jax.random.split(jax.random.key(0), 400)
    ]
    assert float(three_steps.episodic.trajectory_loss) == 0
    assert np.mean(np.array(losses) > 0) == pytest.approx(0.5, abs=0.1)
    assert_equal(train(three_steps, step, key_with_coin(False)), three_steps.episodic)


@pytest.mark.slow
def test_all_environments_with_two_steps_train_the_model_every_chunk_of_environment_steps():
    agent, spec = replace(AGENT, chunk=6), replace(SPEC, num_envs=3)
    # The episode of the last environment has no step with a successor.
    script = [[(1.0, "")] * 3] * 6 + [[(1.0, "")] * 2 + [(1.0, TERMINATED)]]
    state, key = rollout(agent, spec, script, extra=1).states[-1], key_with_coin(True)
    train = train_program(agent, spec)
    before = state.episodic
    # Three environments take a chunk of six steps in two iterations.
    assert_equal(train(state, jnp.int32(7), key), before)
    trained = train(state, jnp.int32(8), key)
    samples, noise_keys = sample_program(agent, spec)(state, jnp.int32(8), key)
    assert samples.is_usable.tolist() == [True, True, False]
    usable = jax.tree.map(lambda x: x[:2], (samples, noise_keys))

    def loss(model, samples, noise_keys):
        losses = jax.vmap(trajectory_model.recall_loss, in_axes=(None, 0, 0))
        return jnp.mean(losses(model, samples, noise_keys))

    @jax.jit
    def one_gradient_step(model, opt_state, data):
        optimizer = make_optimizer(agent.trajectory_lr, MAX_GRAD_NORM)
        return gradient_step(optimizer, loss, model, opt_state, *data)

    model, _, expected = one_gradient_step(
        before.trajectory_model, before.trajectory_opt_state, usable
    )
    for a, b in zip(*map(jax.tree.leaves, (trained.trajectory_model, model)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert float(trained.trajectory_loss) == pytest.approx(float(expected), rel=1e-5)


def test_an_episode_without_a_successor_trains_nothing():
    state = rollout(AGENT, SPEC, FIVE_STEPS, extra=1).states[-1]
    after = train_program(AGENT, SPEC)(state, jnp.int32(6), key_with_coin(True))
    assert_equal(after, state.episodic)

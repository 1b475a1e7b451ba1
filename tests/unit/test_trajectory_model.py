"""The trajectory model, its losses and the reward model compute their equations, and learn."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.episodic import trajectory_model
from engram.episodic.trajectory_model import (
    RecallSample,
    RewardModel,
    TrajectoryModel,
    prediction_loss,
    recall_loss,
    reward_loss,
    state_action,
)
from engram.heads import MLP
from engram.networks import LSTMState, init_params, zero_state
from engram.optim import gradient_step, make_optimizer

NUM_FEATURES, NUM_ACTIONS = 2, 3
H, L, NUM_CUES = 4, 5, 3
X = NUM_FEATURES + NUM_ACTIONS
KEY = jax.random.key(2)
ENCODE_CHUNK = jax.jit(trajectory_model.encode_chunk)
LOSSES = {loss: jax.jit(loss) for loss in (recall_loss, prediction_loss)}


@pytest.fixture(scope="module")
def model():
    build = partial(TrajectoryModel, NUM_FEATURES, NUM_ACTIONS, H)
    return jax.jit(partial(init_params, build))(jax.random.key(1))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(model, pair, h, c):
    """The model's cell in NumPy."""
    weights = model.cell.weight_ih, model.cell.weight_hh, model.cell.bias
    weight_ih, weight_hh, bias = (np.asarray(x, float) for x in weights)
    i, f, g, o = np.split(weight_ih @ pair + weight_hh @ h + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def reconstruct(model, h):
    """The model's linear layer in NumPy."""
    weight, bias = (
        np.asarray(x, float) for x in (model.reconstruct.weight, model.reconstruct.bias)
    )
    return weight @ h + bias


def random_sample(length=L):
    """A chunk whose last `length` pairs are of the episode."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return RecallSample(
        tau=LSTMState(normal(H), normal(H)),
        chunk=normal(L, X),
        mask=np.arange(L) >= L - length,
        cues=normal(NUM_CUES, X),
        answers=normal(NUM_CUES, X),
        is_usable=np.array(length >= 2),
    )


def noisy(pairs):
    noise = np.asarray(jax.random.normal(KEY, pairs.shape), float)
    return pairs + 0.1 * np.linalg.norm(pairs, axis=1, keepdims=True) * noise


def test_a_state_action_pair_has_the_action_as_one_hot():
    pair = state_action(jnp.array([[0.5, -2.0]]), jnp.array([1]), 3)
    assert pair.tolist() == [[0.5, -2.0, 0.0, 1.0, 0.0]]


def test_the_trajectory_model_is_an_lstm(model):
    tau, (h, c) = zero_state(H), np.zeros((2, H))
    step = jax.jit(TrajectoryModel.__call__)
    for pair in random_sample().chunk:
        tau = step(model, tau, pair)
        h, c = lstm(model, pair, h, c)
    np.testing.assert_allclose(tau.h, h, atol=1e-6)
    np.testing.assert_allclose(tau.c, c, atol=1e-6)


@pytest.mark.parametrize("length", [L, 3, 0])
def test_a_chunk_is_encoded_from_its_start_without_masked_pairs(model, length):
    sample = random_sample(length)
    after, before = ENCODE_CHUNK(model, sample)
    h, c = sample.tau
    for step, pair in enumerate(sample.chunk):
        np.testing.assert_allclose(before.h[step], h, atol=1e-6)
        if step >= L - length:
            h, c = lstm(model, pair, h, c)
    np.testing.assert_allclose(after.h, h, atol=1e-6)
    np.testing.assert_allclose(after.c, c, atol=1e-6)


@pytest.mark.parametrize("length", [L, 2])
def test_the_recall_loss_is_equation_1(model, length):
    sample = random_sample(length)
    h, c = sample.tau
    for pair in sample.chunk[L - length :]:
        h, c = lstm(model, pair, h, c)
    errors = []
    for cue, answer in zip(noisy(sample.cues), sample.answers, strict=True):
        errors.append(np.sum((reconstruct(model, lstm(model, cue, h, c)[0]) - answer) ** 2))
    loss = LOSSES[recall_loss](model, sample, KEY)
    assert loss == pytest.approx(np.mean(errors), rel=1e-5)


@pytest.mark.parametrize("length", [L, 3])
def test_the_prediction_loss_predicts_each_pair_from_the_one_before(model, length):
    sample = random_sample(length)
    (h, c), cues, errors = sample.tau, noisy(sample.chunk[:-1]), []
    for step in range(L - length, L - 1):
        prediction = reconstruct(model, lstm(model, cues[step], h, c)[0])
        errors.append(np.sum((prediction - sample.chunk[step + 1]) ** 2))
        h, c = lstm(model, sample.chunk[step], h, c)
    assert len(errors) == length - 1
    loss = LOSSES[prediction_loss](model, sample, KEY)
    assert loss == pytest.approx(np.mean(errors), rel=1e-5)


def test_the_noise_of_a_cue_is_a_tenth_of_its_norm():
    pairs = jnp.tile(jnp.array([3.0, 4.0]), (20_000, 1))  # of norm 5
    noise = np.asarray(trajectory_model.add_noise(pairs, KEY) - pairs)
    assert noise.std() == pytest.approx(0.5, rel=0.03)
    assert np.abs(noise.mean(axis=0)).max() < 5 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_flow_through_the_chunk_and_stop_before_it(model, loss):
    sample = random_sample(3)

    @partial(jax.grad, argnums=(0, 1, 2))
    def gradients(tau, chunk, model):
        return loss(model, sample._replace(tau=tau, chunk=chunk), KEY)

    tau, chunk, model = jax.jit(gradients)(sample.tau, sample.chunk, model)
    assert not np.any(tau.h)
    assert not np.any(tau.c)
    assert np.abs(chunk[2:]).sum(axis=1).min() > 0
    if loss is recall_loss:
        assert not np.any(chunk[:2])
    assert all(np.any(x) for x in jax.tree.leaves(model))


def train(loss, model, inputs):
    """The model and the losses of one gradient step per element of `inputs`."""
    optimizer = make_optimizer(0.01, 10.0)

    def step(learner, x):
        *learner, value = gradient_step(optimizer, loss, *learner, x)
        return tuple(learner), value

    learner = model, optimizer.init(model)
    (model, _), losses = jax.jit(partial(jax.lax.scan, step))(learner, inputs)
    return model, losses


@pytest.mark.parametrize("loss", LOSSES)
def test_training_decreases_the_loss_of_the_trajectory_model(model, loss):
    """An episode that repeats four states, so that the next pair is known."""
    cycle = np.array(
        [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [-1, 0, 0, 0, 1], [0, -1, 1, 0, 0]], np.float32
    )
    answers = np.roll(cycle, -1, axis=0)
    chunk, mask = np.concatenate([cycle, cycle]), np.ones(8, bool)
    sample = RecallSample(zero_state(H), chunk, mask, cycle, answers, np.array(True))
    keys = jax.random.split(KEY, 400)
    _, losses = train(lambda model, key: loss(model, sample, key), model, keys)
    assert losses[-20:].mean() < 0.2 * losses[:20].mean()


def test_the_reward_model_learns_a_reward():
    rng = np.random.default_rng(3)
    states = rng.normal(size=(256, 2)).astype(np.float32)
    pairs = state_action(states, rng.integers(0, 3, 256), 3)
    rewards = pairs[:, 0] - 2 * pairs[:, 3]  # of the state, and 2 less for the second action
    model = RewardModel(init_params(partial(MLP, (X, 32, 1)), KEY))
    errors = [float(r) - float(model(p)) for p, r in zip(pairs[:4], rewards[:4], strict=True)]
    loss = reward_loss(model, pairs[:4], rewards[:4])
    assert loss == pytest.approx(np.mean(np.square(errors)), rel=1e-4)
    model, losses = train(
        lambda model, _: reward_loss(model, pairs, rewards), model, jnp.zeros(400)
    )
    assert losses[0] > 1
    assert losses[-1] < 0.01
    assert model(jnp.array([0.5, 0.0, 0.0, 1.0, 0.0])) == pytest.approx(-1.5, abs=0.2)

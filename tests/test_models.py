"""The trajectory model, its two losses and the reward model compute what their equations say, and learn."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram import models
from engram.models import RewardModel, Stretch, Trajectory, TrajectoryModel
from engram.networks import MLP, descend, draw, encode, fresh, optimiser
from engram.types import Spec

STATES, ACTIONS, H, L, CUES = 2, 3, 4, 5, 3
X = STATES + ACTIONS
MODEL = draw(lambda key: TrajectoryModel(STATES, ACTIONS, H, key), jax.random.key(1))
KEY = jax.random.key(2)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(pair, h, c):
    """The cell in NumPy."""
    cell = MODEL.cell
    gates = np.asarray(cell.weight_ih, float) @ pair + np.asarray(cell.weight_hh, float) @ h + np.asarray(cell.bias, float)
    i, f, g, o = np.split(gates, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def back(h):
    return np.asarray(MODEL.reconstruct.weight, float) @ h + np.asarray(MODEL.reconstruct.bias, float)


def stretch(valid=L, seed=0):
    random = np.random.default_rng(seed)

    def some(*shape):
        return random.normal(size=shape).astype(np.float32)

    return Stretch(
        tau=Trajectory(some(H), some(H)),
        chunk=some(L, X),
        valid=np.arange(L) >= L - valid,
        cues=some(CUES, X),
        answers=some(CUES, X),
        usable=np.array(valid >= 2),
    )


def blurred(pairs, key=KEY):
    noise = np.asarray(jax.random.normal(key, pairs.shape), float)
    return pairs + 0.1 * np.linalg.norm(pairs, axis=1, keepdims=True) * noise


def test_a_pair_is_the_state_and_the_action_as_one_hot():
    pair = models.pairs(jnp.array([[0.5, -2.0]]), jnp.array([1]), 3)
    assert pair.tolist() == [[0.5, -2.0, 0.0, 1.0, 0.0]]


def test_the_trajectory_goes_on_as_the_cell_step_by_step():
    s, tau, carry = stretch(), fresh(H), (jnp.zeros(H), jnp.zeros(H))
    h, c = np.zeros(H), np.zeros(H)
    for pair in s.chunk:
        tau, carry, (h, c) = MODEL(tau, pair), MODEL.cell(pair, carry), lstm(pair, h, c)
    np.testing.assert_array_equal(tau.h, carry[0])
    np.testing.assert_array_equal(tau.c, carry[1])
    np.testing.assert_allclose(tau.h, h, atol=1e-6)
    np.testing.assert_allclose(tau.c, c, atol=1e-6)


@pytest.mark.parametrize("valid", [L, 3, 0])
def test_a_chunk_is_encoded_from_its_start_and_skips_what_is_not_of_the_episode(valid):
    s = stretch(valid)
    after, before = models.encode_chunk(MODEL, s)
    h, c = s.tau
    for step, pair in enumerate(s.chunk):
        np.testing.assert_allclose(before.h[step], h, atol=1e-6)
        if step >= L - valid:
            h, c = lstm(pair, h, c)
    np.testing.assert_allclose(after.h, h, atol=1e-6)
    np.testing.assert_allclose(after.c, c, atol=1e-6)


@pytest.mark.parametrize("valid", [L, 2])
def test_the_recall_loss_is_that_of_equation_1(valid):
    s = stretch(valid)
    h, c = s.tau
    for pair in s.chunk[L - valid :]:
        h, c = lstm(pair, h, c)
    errors = [((back(lstm(cue, h, c)[0]) - answer) ** 2).sum() for cue, answer in zip(blurred(s.cues), s.answers, strict=True)]
    assert models.recall_loss(MODEL, s, KEY) == pytest.approx(np.mean(errors), rel=1e-5)


@pytest.mark.parametrize("valid", [L, 3])
def test_the_prediction_loss_foresees_each_pair_of_the_chunk_from_the_one_before(valid):
    s = stretch(valid)
    (h, c), cues, errors = s.tau, blurred(s.chunk[:-1]), []
    for step in range(L - valid, L - 1):
        errors.append(((back(lstm(cues[step], h, c)[0]) - s.chunk[step + 1]) ** 2).sum())
        h, c = lstm(s.chunk[step], h, c)
    assert len(errors) == valid - 1
    assert models.prediction_loss(MODEL, s, KEY) == pytest.approx(np.mean(errors), rel=1e-5)


def test_cues_are_blurred_by_a_tenth_of_their_norm():
    pair = jnp.tile(jnp.array([3.0, 4.0]), (20_000, 1))  # of norm 5
    noise = np.asarray(models.noisy(pair, KEY) - pair)
    assert noise.std() == pytest.approx(0.5, rel=0.03)
    assert np.abs(noise.mean(axis=0)).max() < 5 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize("loss", [models.recall_loss, models.prediction_loss])
def test_gradients_flow_through_the_chunk_but_not_to_where_it_began(loss):
    s = stretch(3)

    def of(tau, chunk, model):
        return loss(model, s._replace(tau=tau, chunk=chunk), KEY)

    tau, chunk, model = jax.grad(of, argnums=(0, 1, 2))(s.tau, s.chunk, MODEL)
    assert not np.any(tau.h)
    assert not np.any(tau.c)
    assert np.abs(chunk[2:]).sum(axis=1).min() > 0
    if loss is models.recall_loss:
        assert not np.any(chunk[:2])
    assert all(np.any(x) for x in jax.tree.leaves(model))


@pytest.mark.parametrize("loss", [models.recall_loss, models.prediction_loss])
def test_training_lowers_the_loss_of_trajectories(loss):
    """An episode that goes round in a circle of four states: what follows a pair is always the same."""
    circle = np.array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [-1, 0, 0, 0, 1], [0, -1, 1, 0, 0]], np.float32)
    cues = np.array([0, 1, 2, 3])
    episode = Stretch(fresh(H), circle[np.arange(8) % 4], np.ones(8, bool), circle[cues], circle[(cues + 1) % 4], np.array(True))
    adam = optimiser(0.01, 10.0)

    def step(learnt, key):
        *learnt, value = descend(adam, loss, *learnt, episode, key)
        return tuple(learnt), value

    keys = jax.random.split(KEY, 400)
    _, losses = jax.jit(lambda: jax.lax.scan(step, (MODEL, adam.init(MODEL)), keys))()
    assert losses[-20:].mean() < 0.2 * losses[:20].mean()


def test_the_reward_model_learns_a_reward():
    random = np.random.default_rng(3)
    pairs = models.pairs(random.normal(size=(256, 2)).astype(np.float32), random.integers(0, 3, 256), 3)
    rewards = pairs[:, 0] - 2 * pairs[:, 3]  # of the state, and less 2 for the second action
    model = RewardModel(draw(partial(MLP, (X, 32, 1)), KEY))
    assert models.reward_loss(model, pairs, rewards) == pytest.approx(
        np.mean([(float(r) - float(model(p))) ** 2 for p, r in zip(pairs, rewards, strict=True)]), rel=1e-4
    )
    adam = optimiser(0.01, 10.0)

    def step(learnt, _):
        *learnt, value = descend(adam, models.reward_loss, *learnt, pairs, rewards)
        return tuple(learnt), value

    (model, _), losses = jax.jit(lambda: jax.lax.scan(step, (model, adam.init(model)), length=400))()
    assert losses[0] > 1
    assert losses[-1] < 0.01
    assert model(jnp.array([0.5, 0.0, 0.0, 1.0, 0.0])) == pytest.approx(-1.5, abs=0.2)


def test_networks_begin_within_the_bounds_of_their_layers():
    model = draw(lambda key: TrajectoryModel(30, 20, 16, key), KEY)
    for layer, inputs in ((model.cell.weight_ih, 16), (model.cell.weight_hh, 16), (model.reconstruct.weight, 16)):
        assert np.abs(layer).max() <= 1 / np.sqrt(inputs)
        assert np.std(layer) == pytest.approx(1 / np.sqrt(3 * inputs), rel=0.1)
    first, second = draw(partial(MLP, (16, 16, 16)), KEY).layers
    assert isinstance(first, eqx.nn.Linear)
    assert abs(np.corrcoef(first.weight.ravel(), second.weight.ravel())[0, 1]) < 0.3


def test_observations_are_scaled_from_their_bounds_to_1():
    inf = float("inf")
    spec = Spec((3,), 2, low=(-2.0, 0.0, -inf), high=(4.0, 10.0, inf))
    seen = jnp.array([[-2.0, 10.0, 7.0], [1.0, 2.5, -7.0]])
    np.testing.assert_allclose(encode(spec, seen, True), [[-1.0, 1.0, 7.0], [0.0, -0.5, -7.0]], atol=1e-6)
    np.testing.assert_array_equal(encode(spec, seen, False), seen)
    image = Spec((2, 2), 2, dtype="uint8")
    assert encode(image, np.full((1, 2, 2), 255, np.uint8), False).tolist() == [[1.0, 1.0, 1.0, 1.0]]

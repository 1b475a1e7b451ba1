"""Keys are made anew by one encoder of inputs that are weighed by their autocorrelation."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.agents import MBEC
from engram.episodic.reencoding import (
    BLOCK,
    IMAGE_BLOCK,
    MAX_DEVIATIONS,
    MIN_AUTOCORRELATION,
    feature_sums,
    init_inputs,
    persistence_weights,
    reencode,
    schedule,
)
from engram.networks import zero_state
from engram.replay_buffer import Transition
from engram.types import Spec, TimeStep

# Weights of inputs


def weights_by_hand(features, done, is_weighed=True):
    """Mean and weight of each feature of steps [T E F], and the number of pairs, by a loop."""
    features = np.asarray(features, np.float64)
    rows, num_envs, _ = features.shape
    mean, std = features.mean(axis=(0, 1)), features.std(axis=(0, 1))
    pairs = [
        (features[t - 1, env], features[t, env])
        for env in range(num_envs)
        for t in range(1, rows)
        if not done[t - 1, env]
    ]
    safe_std = np.where(std > 1e-6, std, 1.0)
    autocorrelation = np.zeros_like(mean)
    for feature in range(len(mean)):
        first, second = np.array([(a[feature], b[feature]) for a, b in pairs]).reshape(-1, 2).T
        if len(pairs) and min(first.std(), second.std()) > 1e-3 * std[feature]:
            autocorrelation[feature] = np.corrcoef(first, second)[0, 1]
    lowered = np.clip(autocorrelation - 2 / np.sqrt(max(len(pairs), 1)), 0, 1)
    lowered[autocorrelation < MIN_AUTOCORRELATION] = 0
    weight = lowered if is_weighed and (lowered > 0).any() else 1.0
    return mean, np.where(std > 1e-6, weight / safe_std, 0.0), len(pairs)


def ring_of(features, done, rows):
    """The replay buffer after all of these steps."""
    num_envs, size = features.shape[1:]
    obs, ends = np.zeros((rows, num_envs, size), np.float32), np.zeros((rows, num_envs))
    for t in range(len(features)):
        obs[t % rows], ends[t % rows] = features[t], done[t]
    zeros = jnp.zeros((rows, num_envs))
    action = jnp.zeros((rows, num_envs), jnp.int32)
    return Transition(jnp.array(obs), action, zeros, obs, zeros, jnp.array(ends, jnp.float32))


SUMS = jax.jit(lambda replay, first, step: feature_sums(None, replay, first, step))


def sums_of(features, done, rows=None):
    features, rows = np.asarray(features, np.float32), rows or len(features)
    step = len(features)
    return SUMS(ring_of(features, done, rows), jnp.int32(max(step - rows, 0)), jnp.int32(step))


def weights_of(features, done=None, is_weighed=True):
    done = np.zeros(np.shape(features)[:2]) if done is None else done
    return [np.asarray(x) for x in persistence_weights(sums_of(features, done), is_weighed)]


def test_a_feature_that_only_rounding_changes_does_not_take_all_weight():
    steps = np.arange(400)
    noise = np.random.default_rng(0).normal(size=400)
    features = np.stack([1e7 + steps % 10, noise], axis=-1)[:, None]
    done = (steps % 10 == 9)[:, None]
    sums = feature_sums(None, ring_of(features, done, 400), jnp.int32(0), jnp.int32(400))
    _, weight = persistence_weights(sums)
    assert weight[0] == 0
    assert weight[1] == pytest.approx(1 / noise.std(), rel=1e-4)


@settings(max_examples=60)
@given(
    steps=st.integers(1, 30) | st.integers(BLOCK - 1, 3 * BLOCK),
    rows=st.sampled_from([12, BLOCK + 7]),
    p_end=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 99),
)
def test_weights_are_those_of_the_steps_that_replay_holds(steps, rows, p_end, seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(steps, 3, 2)).astype(np.float32)
    features[1:, :, 1] = 0.3 * features[1:, :, 1] + 0.7 * features[:-1, :, 1]
    features -= features[-rows:].mean(axis=(0, 1))
    done = rng.random((steps, 3)) < p_end
    sums = sums_of(features, done, rows)
    held = features[-rows:], done[-rows:]
    for is_weighed in (True, False):
        mean, weight, pairs = weights_by_hand(*held, is_weighed)
        assert (int(sums.count), int(sums.num_pairs)) == (3 * min(steps, rows), pairs)
        ours = persistence_weights(sums, is_weighed)
        np.testing.assert_allclose(ours[0], mean, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ours[1], weight, rtol=1e-2, atol=1e-3)


def test_weights_of_short_episodes_agree_with_numbers_by_hand():
    """Ten times the episodes 0, 0 and 4, 4: 20 pairs, mean and deviation are 2."""
    features = np.tile([0.0, 0.0, 4.0, 4.0], 10)[:, None, None]
    done = np.tile([0, 1], 20)[:, None]
    mean, weight = weights_of(features, done)
    assert mean.tolist() == [2.0]
    np.testing.assert_allclose(weight, (1 - 2 / np.sqrt(20)) / 2, rtol=1e-5)


def test_two_pairs_among_many_steps_say_nothing():
    """Episodes of one step but for 0, 0 and 4, 4: what two pairs show may be chance."""
    features = np.array([0.0, 0.0, 4.0, 4.0] + [0.0, 4.0] * 50).reshape(-1, 1, 1)
    done = np.array([0, 1] * 2 + [1] * 100).reshape(-1, 1)
    _, (weight,) = weights_of(features, done)
    assert weight == pytest.approx(1 / features.std())  # as where nothing persists


def test_a_feature_that_only_grows_within_episodes_persists():
    """Its steps in pairs are (0, 1), (1, 2) and (2, 2), as y is on the way through the maze."""
    features = np.array([0.0, 1.0, 2.0, 2.0] * 20).reshape(-1, 1, 1)
    done = np.array([0, 0, 0, 1] * 20).reshape(-1, 1)
    _, (weight,) = weights_of(features, done)
    expected = np.corrcoef([0, 1, 2], [1, 2, 2])[0, 1] - 2 / np.sqrt(60)
    assert weight * features.std() == pytest.approx(expected, rel=1e-3)


def autoregressive(rng, steps, correlation, scale=1.0):
    x = rng.normal(size=(steps, 1, 1))
    for t in range(1, steps):
        x[t] = correlation * x[t - 1] + np.sqrt(1 - correlation**2) * x[t]
    return scale * x


@pytest.mark.parametrize("correlation", [0.6, 0.95])
def test_a_persistent_feature_weighs_its_autocorrelation_per_standard_deviation(correlation):
    rng = np.random.default_rng(0)
    features = autoregressive(rng, 2_000, correlation, scale=5.0)
    _, (weight,) = weights_of(features)
    assert weight * features.std() == pytest.approx(correlation - 2 / np.sqrt(1_999), abs=0.05)


def test_white_noise_and_features_of_low_autocorrelation_have_weight_0():
    rng = np.random.default_rng(1)
    noise, low = rng.normal(size=(50, 1, 400)), autoregressive(rng, 2_000, 0.4)
    assert np.mean(beside_a_ramp(noise) > 0) < 0.01  # one half is 3.5 standard errors
    assert beside_a_ramp(low).tolist() == [0.0]


def beside_a_ramp(features, done=None):
    """The weights of features beside one that persists."""
    ramp = np.broadcast_to(np.arange(len(features))[:, None, None], (*features.shape[:2], 1))
    *weights, last = weights_of(np.concatenate([features, ramp], axis=-1), done)[1]
    assert last > 0
    return np.array(weights)


def test_where_nothing_persists_all_features_weigh_one_per_standard_deviation():
    noise = np.random.default_rng(3).normal(size=(200, 1, 2)) * [1.0, 5.0]
    np.testing.assert_allclose(weights_of(noise)[1], 1 / noise.std(axis=(0, 1)), rtol=1e-3)


@pytest.mark.parametrize("p_end", [0.0, 0.2])
def test_weights_do_not_depend_on_how_far_a_feature_is_from_0(p_end):
    rng = np.random.default_rng(2)
    noise, persistent = rng.normal(size=(200, 1, 1)), autoregressive(rng, 200, 0.95)
    features = np.concatenate([noise, persistent], axis=-1) + 1_000
    done = rng.random((200, 1)) < p_end
    mean, weight, _ = weights_by_hand(features, done)
    assert weight[0] == 0 < weight[1]
    ours = weights_of(features, done)
    np.testing.assert_allclose(ours[0], mean, rtol=1e-5)
    np.testing.assert_allclose(ours[1], weight, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("is_weighed", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.25, 0.3])
def test_a_constant_feature_has_weight_0(value, is_weighed):
    _, weight = weights_of(np.full((64, 2, 1), value), is_weighed=is_weighed)
    assert weight.tolist() == [0.0]


def test_one_step_alone_has_weight_0():
    _, weight = weights_of([[[3.0]]])
    assert weight.tolist() == [0.0]


def test_steps_of_different_episodes_are_no_pairs():
    """A feature that is constant within episodes of two steps: 1, 1 | -1, -1 | ..."""
    features = np.tile([1.0, 1.0, -1.0, -1.0], 50)[:, None, None]
    done = np.tile([0, 1], 100)[:, None]
    _, (within,) = weights_of(features, done)
    assert within == pytest.approx(1 - 2 / np.sqrt(100), rel=1e-5)
    assert beside_a_ramp(features).tolist() == [0.0]


def test_inputs_are_clipped_deviations():
    inputs = init_inputs(Spec((2,), 2), None)
    inputs = inputs._replace(mean=jnp.array([1.0, 0.0]), weight=jnp.array([2.0, 0.5]))
    obs = jnp.array([[2.0, -4.0], [100.0, -100.0]])
    expected = [[2.0, -2.0], [MAX_DEVIATIONS, -MAX_DEVIATIONS]]
    np.testing.assert_allclose(inputs(obs), expected)
    assert inputs(obs[:, None]).shape == (2, 1, 2)


# When keys are re-encoded


@given(st.integers(0, 10**7))
def test_keys_are_re_encoded_ever_more_rarely(num_iterations):
    steps = schedule(num_iterations)
    assert all(step < num_iterations for step in steps)
    assert all(1.4 < b / a < 1.6 for a, b in pairwise(steps))
    assert sum(steps) <= 3 * num_iterations + len(steps)  # steps that are encoded again
    if num_iterations > 16:
        assert steps[0] == 16
        assert steps[-1] > num_iterations / 1.6
    else:
        assert steps == []


# Keys

NUM_ENVS, TRAJECTORY_DIM = 3, 3
SPEC = Spec((2,), 2, max_episode_steps=9, num_envs=NUM_ENVS, num_iterations=40)
AGENT = MBEC(
    num_neighbours=2,
    memory_size=200,
    trajectory_dim=TRAJECTORY_DIM,
    trajectory_loss="recall",
    trajectory_lr=0.05,  # the trajectory model changes much between two renewals
    batch_size=4,
    learning_starts=4,
    refine_batch=2,
    n_step=4,
)


@cache
def programs(agent, spec):
    """Compiled `init`, `step`, `learn` and `reencode_keys`."""
    init = jax.jit(lambda: agent.init(jax.random.key(0), spec))
    step = jax.jit(lambda state, *inputs: agent.step(state, spec, *inputs)[:2])
    learn = jax.jit(lambda state, *inputs: agent.learn(state, spec, *inputs)[0])
    renew = jax.jit(lambda state, step: agent.reencode_keys(state, spec, step))
    return init, step, learn, renew


class Run:
    """A run of MBEC through random episodes, and all that it has seen and done."""

    def __init__(self, agent, spec=SPEC):
        self.agent, self.spec = agent, spec
        self.init, self.step, self.learn, self.renew = programs(agent, spec)
        self.state, self.rng = self.init(), np.random.default_rng(3)
        self.iteration = 0
        self.obs, self.actions, self.done = [], [], []
        """`done[i]`: whether the action of iteration i - 1 ended an episode"""

    def act(self):
        """`Agent.step` in the next iteration."""
        num_envs = self.spec.num_envs
        noise, final = self.rng.normal(size=(2, num_envs, 2)).astype(np.float32)
        obs = noise.copy()
        if self.obs:  # one feature persists and the other is noise
            obs[:, 0] = 0.8 * self.obs[-1][:, 0] + 0.6 * noise[:, 0]
        done = (self.rng.random(num_envs) < 0.25) & (self.iteration > 0)
        reward = self.rng.normal(size=num_envs).astype(np.float32)
        timestep = TimeStep(obs, reward, done, np.zeros_like(done), final)
        key = jax.random.key(self.iteration)
        self.state, action = self.step(self.state, timestep, jnp.int32(self.iteration), key)
        self.obs.append(obs)
        self.actions.append(np.asarray(action))
        self.done.append(done)

    def advance(self, iteration):
        """Acts and learns until `Agent.step` of this iteration, after which it has not learned."""
        while self.iteration < iteration:
            if len(self.obs) == self.iteration:
                self.act()
            key = jax.random.key(1_000 + self.iteration)
            self.state = self.learn(self.state, jnp.int32(self.iteration), key)
            self.iteration += 1
        self.act()
        return self

    def renewed(self):
        """The state with all keys re-encoded, if that is due in this iteration."""
        return self.renew(self.state, jnp.int32(self.iteration))

    def trajectories(self, model, encode, first=0, start=None):
        """tau before and after the action of each iteration from `first` on, [T E H], by a loop."""
        one_step = jax.jit(jax.vmap(model))
        tau = zero_state(self.spec.num_envs, TRAJECTORY_DIM) if start is None else start
        before, after = [], []
        for t in range(first, self.iteration + 1):
            is_first = self.done[t][:, None] & (t > first)
            tau = jax.tree.map(lambda x, is_first=is_first: np.where(is_first, 0, x), tau)
            before.append(tau)
            one_hot = np.eye(self.spec.num_actions)[self.actions[t]]
            pair = np.concatenate([encode(self.obs[t]), one_hot], axis=-1)
            tau = jax.tree.map(np.asarray, one_step(tau, pair.astype(np.float32)))
            after.append(tau)
        return [jax.tree.map(lambda *x: np.stack(x), *taus) for taus in (before, after)]

    def weights(self, is_weighed=True):
        """Mean and weight of inputs, by the steps before this iteration."""
        return weights_of(np.stack(self.obs)[:-1], np.stack(self.done)[1:], is_weighed)


def assert_close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)


def filled(memory):
    """Keys and sources of the filled slots."""
    size = int(memory.size)
    return np.asarray(memory.keys)[:size], np.asarray(memory.source)[:size]


def pending_keys(pending):
    """Keys and sources of the entries that wait, of all environments."""
    entries = []
    for env in range(NUM_ENVS):
        for n in range(int(pending.count[env])):
            slot = (int(pending.head[env]) + n) % pending.returns.shape[1]
            entries.append((pending.entry.tau[env, slot], int(pending.entry.source[env, slot])))
    return tuple(np.array(x) for x in zip(*entries, strict=True))


@pytest.fixture(scope="module")
def run():
    """A run in iteration 24, before the second renewal of its keys."""
    return Run(AGENT).advance(24)


def test_keys_are_made_by_the_copy_of_the_last_renewal(run):
    state, episodic = run.state, run.state.episodic
    _, after = run.trajectories(episodic.key_model, state.inputs)
    for keys, source in (filled(episodic.memory), pending_keys(episodic.pending)):
        assert len(source) > 3
        assert_close(keys, after.h[source // NUM_ENVS, source % NUM_ENVS])


def test_a_renewal_computes_all_keys_as_if_anew(run):
    before, after = run.state, run.renewed()
    taus, next_taus = run.trajectories(before.episodic.trajectory_model, after.inputs)
    for part in ("memory", "pending"):
        keys_of = filled if part == "memory" else pending_keys
        old_keys, source = keys_of(getattr(before.episodic, part))
        keys, same_source = keys_of(getattr(after.episodic, part))
        np.testing.assert_array_equal(source, same_source)
        assert_close(keys, next_taus.h[source // NUM_ENVS, source % NUM_ENVS])
        assert np.abs(keys - old_keys).max() > 0.05
    stored = run.iteration
    assert_close([x[:stored] for x in after.replay.tau], [x[:-1] for x in taus])
    assert_close([x[:stored] for x in after.replay.next_tau], [x[:-1] for x in next_taus])
    assert_close(after.episodic.prev_tau, [x[-1] for x in taus])
    assert_close(after.episodic.tau, [x[-1] for x in next_taus])


@pytest.mark.parametrize("rows", [pytest.param(150, marks=pytest.mark.slow), BLOCK + 6])
def test_a_renewal_of_more_steps_than_a_block_computes_all_trajectories_as_if_anew(rows):
    spec = replace(SPEC, num_iterations=150)
    run = Run(replace(AGENT, buffer_size=rows * NUM_ENVS), spec).advance(122)
    before, after = run.state, run.renewed()
    first = max(0, run.iteration - rows)
    start = jax.tree.map(lambda x: np.asarray(x[first % rows]), before.replay.tau)
    model = before.episodic.trajectory_model
    taus, next_taus = run.trajectories(model, after.inputs, first, start)
    row = np.arange(first, run.iteration) % rows
    assert_close([x[row] for x in after.replay.tau], [x[:-1] for x in taus])
    assert_close([x[row] for x in after.replay.next_tau], [x[:-1] for x in next_taus])
    assert_close(after.episodic.tau, [x[-1] for x in next_taus])


def test_a_renewal_renews_the_model_and_the_inputs_of_keys(run):
    before, after = run.state, run.renewed()
    model = before.episodic.trajectory_model
    np.testing.assert_array_equal(after.episodic.key_model.cell.weight_ih, model.cell.weight_ih)
    assert np.abs(before.episodic.key_model.cell.weight_ih - model.cell.weight_ih).max() > 0.01
    for old, new, by_hand in zip(before.inputs[1:], after.inputs[1:], run.weights(), strict=True):
        np.testing.assert_allclose(new, by_hand, rtol=1e-5)
        assert np.abs(new - old).max() > 0.01
    assert after.inputs.weight[0] > 0.3
    assert after.inputs.weight[1] == 0


def test_inputs_that_are_not_weighed_are_standardized(run):
    _, _, _, renew = programs(replace(AGENT, weigh_inputs=False), SPEC)
    inputs = renew(run.state, jnp.int32(run.iteration)).inputs
    seen = np.stack(run.obs)[:-1]
    np.testing.assert_allclose(inputs.mean, seen.mean((0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(inputs.weight, 1 / seen.std((0, 1)), rtol=1e-4)


def test_a_renewal_leaves_values_returns_and_transitions(run):
    before, after = run.state, run.renewed()
    for part in ("values", "source", "last_used", "num_inserted"):
        old, new = (getattr(state.episodic.memory, part) for state in (before, after))
        np.testing.assert_array_equal(old, new)
    old, new = ((state.episodic.pending, state.replay) for state in (before, after))
    np.testing.assert_array_equal(old[0].returns, new[0].returns)
    np.testing.assert_array_equal(old[0].entry.source, new[0].entry.source)
    np.testing.assert_array_equal(old[1].obs, new[1].obs)


def test_memories_whose_step_has_left_replay_keep_their_key():
    rows = 10
    run = Run(replace(AGENT, buffer_size=rows * NUM_ENVS)).advance(24)
    before, after = run.state, run.renewed()
    first = run.iteration - rows
    # The oldest row is in the midst of episodes, whose trajectories so far are kept.
    start = jax.tree.map(lambda x: np.asarray(x[first % rows]), before.replay.tau)
    model = before.episodic.trajectory_model
    _, next_taus = run.trajectories(model, after.inputs, first, start)
    (old_keys, source), (keys, _) = filled(before.episodic.memory), filled(after.episodic.memory)
    row, env = source // NUM_ENVS - first, source % NUM_ENVS
    is_gone = row < 0
    assert 10 < is_gone.sum() < len(source) - 5
    np.testing.assert_array_equal(keys[is_gone], old_keys[is_gone])
    assert_close(keys[~is_gone], next_taus.h[row[~is_gone], env[~is_gone]])
    assert np.abs(keys[~is_gone] - old_keys[~is_gone]).max() > 0.01
    assert_close(after.episodic.tau, [x[-1] for x in next_taus])


def test_the_model_of_keys_changes_at_renewals_only():
    run, previous, changed = Run(AGENT), None, []
    while run.iteration < 30:
        run.advance(run.iteration + 1)
        weights = np.asarray(run.state.episodic.key_model.cell.weight_ih)
        if previous is not None and np.any(weights != previous):
            changed.append(run.iteration - 1)
        previous = weights
    assert changed == [16, 24]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_trajectory_model_is_trained_on_the_inputs_of_keys(run, weight):
    """Without weight, observations do not change its loss."""
    inputs = run.state.inputs._replace(weight=jnp.full(2, weight))
    state = run.state._replace(inputs=inputs)
    doubled = state._replace(replay=state.replay._replace(obs=2 * state.replay.obs))
    before = float(state.episodic.trajectory_loss)
    for seed in range(20):  # half of the trainings happen
        arguments = jnp.int32(run.iteration), jax.random.key(seed)
        losses = [
            float(run.learn(x, *arguments).episodic.trajectory_loss) for x in (state, doubled)
        ]
        if losses[0] != before:
            break
    assert losses[0] != before
    assert (losses[0] == losses[1]) == (weight == 0)


@pytest.mark.parametrize("reencode", [True, False])
def test_between_renewals_the_same_trajectory_has_the_same_key(reencode):
    """With one action all episodes of three steps are the same."""
    agent = replace(AGENT, reencode=reencode, weigh_inputs=False)
    spec = Spec((2,), 1, max_episode_steps=3, num_iterations=40)
    init, step, learn, _ = programs(agent, spec)
    state = init()
    for t in range(16):
        obs = np.array([[t % 3, 1.0]], np.float32)
        done = np.array([t > 0 and t % 3 == 0])
        timestep = TimeStep(obs, np.ones(1, np.float32), done, np.zeros_like(done), obs)
        state, _ = step(state, timestep, jnp.int32(t), jax.random.key(t))
        if t < 15:
            state = learn(state, jnp.int32(t), jax.random.key(t))
    keys = np.asarray(state.replay.next_tau.h)[:15, 0].reshape(5, 3, TRAJECTORY_DIM)
    change = np.abs(keys - keys[0]).max()
    if reencode:
        assert change == 0
        assert int(state.episodic.memory.num_inserted) == 3
    else:  # as the trajectory model learns, so do keys
        assert change > 0.01
        assert int(state.episodic.memory.num_inserted) > 3


@pytest.mark.parametrize("rows", [pytest.param(30, marks=pytest.mark.slow), 2 * IMAGE_BLOCK + 3])
def test_images_in_several_blocks_are_encoded_as_their_features(rows):
    spec = Spec((12, 12, 3), 2, dtype="uint8", num_envs=2, num_iterations=40)
    state = jax.jit(lambda: AGENT.init(jax.random.key(0), spec))()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (rows, 2, 432), np.uint8)
    now = rng.integers(0, 256, (2, 432), np.uint8)
    action = jnp.array(rng.integers(2, size=(rows, 2)), jnp.int32)
    done = jnp.array(rng.random((rows, 2)) < 0.2, jnp.float32)
    tau = zero_state(rows, 2, TRAJECTORY_DIM)
    zeros = jnp.zeros((rows, 2))
    replay = Transition(jnp.array(images), action, zeros, None, zeros, done, tau, tau)
    memory = state.episodic.memory
    sources = jnp.arange(len(memory.keys), dtype=jnp.int32) % 60
    episodic = state.episodic._replace(memory=memory._replace(source=sources))
    features = [jax.vmap(jax.vmap(state.encoder))(jnp.array(x)) for x in (images, now[None])]

    @jax.jit
    def encode(encoder, obs, now):
        buffer = replay._replace(obs=obs)
        return reencode(episodic, encoder, buffer, now, action[0], spec, jnp.int32(27), True)

    ours = encode(state.encoder, jnp.array(images), jnp.array(now))
    expected = encode(None, features[0], features[1][0])
    assert np.ptp(ours.episodic.memory.keys) > 0.1
    assert_close(
        (ours.episodic, ours.tau, ours.next_tau),
        (expected.episodic, expected.tau, expected.next_tau),
    )

"""MFEC remembers the best return of each state and action, by hand, and its keys keep the distances of states."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import act_through, actor, episodes

from engram import tables as tb
from engram.agents.mfec import MFEC, project
from engram.errors import EngramError
from engram.policy import without_learning
from engram.tables import Writing
from engram.types import Spec, TimeStep

SPEC = Spec((2,), 2, limit=10, iterations=40)
GREEDY = MFEC(gamma=0.5, neighbours=1, slots=1000, epsilon_start=0.0, epsilon_end=0.0)
ANY = replace(GREEDY, epsilon_start=1.0, epsilon_end=1.0)


@pytest.fixture(scope="module")
def newborn():
    return GREEDY.init(jax.random.key(0), SPEC)


@pytest.fixture(scope="module")
def resigned():
    """An agent with one action only, so that none of equally good ones must be drawn: its beginning, and how it acts."""
    spec = replace(SPEC, actions=1)
    return actor(GREEDY, spec), GREEDY.init(jax.random.key(0), spec)


KEYS = jax.jit(lambda state, seen: GREEDY.keys(state, SPEC, seen))
RECALL = jax.jit(tb.recall, static_argnums=2)


def remembered(state, seen, action):
    """The value stored for a state and an action, None if there is none."""
    near = RECALL(state.tables, KEYS(state, jnp.array([seen], jnp.float32)), 1)
    return float(state.tables.values[action, near.slots[action, 0, 0]]) if bool(near.exact[action, 0]) else None


# Returns


def test_after_an_episode_its_returns_are_in_the_tables_of_its_actions(newborn):
    states, actions, metrics = act_through(actor(ANY, SPEC), newborn, episodes((0.0, [1.0, 2.0, 4.0], False)), 8)
    # 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, and 4; two are written in each step after the end
    assert [said["memory"] for said in metrics] == [0, 0, 0, 0, 2, 3, 3, 3]
    assert set(actions) == {0, 1}
    for t, expected in enumerate((3.0, 4.0, 4.0)):
        assert remembered(states[-1], (t, 0.0), actions[t]) == expected
        assert remembered(states[-1], (t, 0.0), 1 - actions[t]) is None


def test_the_best_return_of_a_state_stays(resigned):
    worse, better = (0.0, [0.0, 0.0, 1.0], False), (0.0, [5.0, 2.0, 4.0], False)
    states, _, metrics = act_through(*resigned, episodes((0.0, [1.0, 2.0, 4.0], False), worse, better), 13)
    assert [remembered(states[8], (t, 0.0), 0) for t in range(3)] == [3.0, 4.0, 4.0]
    assert [remembered(states[12], (t, 0.0), 0) for t in range(3)] == [8.0 - 1.0, 4.0, 4.0]  # 5 + 2/2 + 4/4
    assert states[12].tables.written.tolist() == [3]
    assert [said["value"] for said in metrics[6:9]] == [3.0, 4.0, 4.0]  # what it says of the states it sees again


def test_a_cut_episode_is_worth_what_the_place_it_led_to_is_worth(resigned):
    script = episodes((0.0, [1.0, 2.0, 4.0], False), (5.0, [0.0, 0.0, 0.0], False), (0.0, [10.0, 20.0], True))
    states, _, _ = act_through(*resigned, script, 12)
    # it is cut at (2, 0), which is worth 4 since the first episode: 10 + 20/2 + 4/4, and 20 + 4/2
    assert [remembered(states[-1], (t, 0.0), 0) for t in range(3)] == [21.0, 22.0, 4.0]
    assert remembered(states[-1], (0, 5.0), 0) == 0.0


def test_greedy_play_takes_the_better_of_what_is_known(newborn):
    seen = jnp.array([[0.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    keys = KEYS(newborn, seen)
    new = Writing(jnp.tile(keys[:2], (2, 1)), jnp.array([1.0, 4.0, 2.0, 3.0]), jnp.array([[1, 1, 0, 0], [0, 0, 1, 1]], bool))
    tables = jax.jit(lambda old: tb.write(old, tb.recall(old, new.key, 1), new, jnp.int32(0), "earliest"))(newborn.tables)
    # Q is (1, 2) in the first state and (4, 3) in the second, which is the nearest to the third
    play = jax.jit(lambda state, seen: GREEDY.play(state, SPEC, seen, jnp.ones(3, bool), jax.random.key(0))[1])
    assert play(newborn._replace(tables=tables), seen).tolist() == [1, 0, 0]
    # by two neighbours the third is judged by both, the others by themselves
    assert tb.read_mean(tables, RECALL(tables, keys, 2)).tolist() == [[1.0, 2.0], [4.0, 3.0], [2.5, 2.5]]


# Keys


@pytest.mark.parametrize(("states", "dim", "length"), [(4, 64, 4), (64, 64, 64), (100, 16, 16)])
def test_a_projection_is_no_longer_than_a_state(states, dim, length):
    assert jax.eval_shape(project, jax.ShapeDtypeStruct((states, dim), jnp.float32)).shape == (states, length)


def test_a_short_projection_has_the_distances_of_the_long_one():
    draws = jax.random.normal(jax.random.key(0), (4, 64))
    states = np.random.default_rng(0).normal(size=(20, 4))

    def distances(x):
        return np.linalg.norm(x[:, None] - x[None], axis=-1)

    long = distances(states @ np.asarray(draws, float) / 8)  # scaled by 1 / sqrt(64)
    np.testing.assert_allclose(distances(states @ np.asarray(project(draws), float)), long, rtol=1e-4, atol=1e-5)
    wide = jax.random.normal(jax.random.key(1), (300, 64))  # where it is shorter than a state, it is as drawn
    np.testing.assert_allclose(project(wide), wide / 8, rtol=1e-6)


# Keys of images

BEFORE, AFTER = 15, 9
SEER = MFEC(
    encoder="vae", vae_steps=BEFORE, key_dim=2, neighbours=1, vae_batch=4, vae_rate=2e-3, gamma=0.5, epsilon_start=0.0, epsilon_end=0.0
)
PICTURES = Spec((32, 32), 2, dtype="uint8", limit=3, iterations=BEFORE + AFTER)


def picture(side):
    """A bright square to the left or to the right."""
    image = np.zeros((1, 32, 32), np.uint8)
    image[0, 8:24, (2 if side == 0 else 18) :][:, :12] = 255
    return image


@pytest.fixture(scope="module")
def seer():
    """What MFEC with an auto-encoder knew and did in each step of episodes of three pictures, left, right, left, of reward 1 each."""

    @jax.jit
    def one(state, timestep, step):
        key = jax.random.fold_in(jax.random.key(1), step)
        state, action, metrics = SEER.act(state, PICTURES, timestep, step, key)
        state, more = SEER.learn(state, PICTURES, step, key)
        return state, action, metrics | more

    state, lived = SEER.init(jax.random.key(0), PICTURES), []
    for step in range(PICTURES.iterations):
        seen, over = picture(step % 3 % 2), np.array([step % 3 == 0 and step > 0])
        told = TimeStep(seen, np.array([float(step > 0)], np.float32), over, np.array([False]), seen)
        state, action, metrics = one(state, told, jnp.int32(step))
        lived.append((state, int(action[0]), {name: float(x) for name, x in metrics.items()}))
    return lived


def test_who_has_seen_plays_without_the_images_of_its_learning(seer):
    state = seer[-1][0]
    less = without_learning(SEER, state)
    assert (less.encoder.images, less.encoder.optimiser, less.waiting) == (None, None, None)
    for side in (0, 1):
        whole, again = (SEER.play(x, PICTURES, picture(side), np.array([True]), jax.random.key(0))[1] for x in (state, less))
        assert whole.tolist() == again.tolist()


def test_the_auto_encoder_learns_before_the_memory_begins_and_is_then_fixed(seer):
    losses = [metrics["vae_loss"] for _, _, metrics in seer]
    assert np.mean(losses[BEFORE - 3 : BEFORE]) < 0.75 * np.mean(losses[:3])
    assert losses[BEFORE:] == [losses[BEFORE - 1]] * AFTER
    codes = [np.asarray(state.encoder.vae.to_code.weight) for state, _, _ in seer]
    assert [np.array_equal(a, b) for a, b in pairwise(codes)] == [False] * (BEFORE - 1) + [True] * AFTER


def test_before_that_actions_are_random_and_nothing_is_written(seer):
    assert [metrics["epsilon"] for _, _, metrics in seer] == [1.0] * BEFORE + [0.0] * AFTER
    assert 2 < sum(action for _, action, _ in seer[:BEFORE]) < BEFORE - 2
    assert not any(int(state.waiting.count[0]) for state, _, _ in seer[:BEFORE])
    memory = [metrics["memory"] for _, _, metrics in seer]
    # the episode that begins with the memory ends three steps later, and is written in the next
    assert memory[: BEFORE + 4] == [0] * (BEFORE + 4)
    assert memory[BEFORE + 4] > 0


def test_different_pictures_have_different_keys_and_the_same_the_same(seer):
    state = seer[-1][0]
    keys = jax.jit(lambda seen: SEER.keys(state, PICTURES, seen))
    left, right, again = (np.asarray(keys(picture(side))) for side in (0, 1, 0))
    np.testing.assert_array_equal(left, again)
    assert np.linalg.norm(left - right) > 1e-3
    # from the first picture three rewards of 1 come, and two from the second, whatever it does
    near = RECALL(state.tables, jnp.concatenate([left, right]), 1)
    known = np.where(near.exact.T, tb.read_mean(state.tables, near), -np.inf)
    np.testing.assert_allclose(np.max(known, axis=-1), [1.75, 1.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((4,), "A VAE needs images, arrays of two to four axes, but an observation has shape (4,): use encoder='projection'."),
        ((31, 64, 3), "A VAE needs images of at least 32 by 32 pixels, not 31 by 64."),
        ((16, 16), "A VAE needs images of at least 32 by 32 pixels, not 16 by 16."),
    ],
)
def test_what_is_no_image_or_a_small_one_is_refused(shape, sentence):
    with pytest.raises(EngramError) as error:
        SEER.init(jax.random.key(0), Spec(shape, 2, iterations=10))
    assert str(error.value) == sentence


# How keys round


@pytest.mark.parametrize("width", [4, 128])
@pytest.mark.usefixtures("optimised")
def test_the_same_state_has_the_same_key_bit_for_bit_wherever_it_is_seen(width):
    """Alone or among ten, and in one run or among three, as when it is played and as in training: or it would not be known again."""
    agent, spec = MFEC(), Spec((width,), 2, iterations=10)
    state = agent.init(jax.random.key(3), spec)
    seen = jax.random.normal(jax.random.key(4), (10, width))
    keys = jax.jit(lambda state, seen: agent.keys(state, spec, seen))
    together = keys(state, seen)
    np.testing.assert_array_equal(np.concatenate([keys(state, one[None]) for one in seen]), together)
    runs = jax.tree.map(lambda x: jnp.stack([x] * 3), state)
    for envs in (1, 10):
        among = jax.jit(jax.vmap(lambda state, seen: agent.keys(state, spec, seen), in_axes=(0, None)))(runs, seen[:envs])
        np.testing.assert_array_equal(among, np.stack([together[:envs]] * 3))

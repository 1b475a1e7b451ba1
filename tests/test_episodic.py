"""What ends in memory is what Algorithm 1 says: trajectories at every L-th step and at the end, with the returns after them."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import episodic, models
from engram import replay as rp
from engram.agents import MBEC
from engram.episodic import Experience
from engram.networks import descend, fresh, optimiser
from engram.types import Spec, TimeStep

# Nothing is refined and nothing moves, so that values in memory can be told by hand; gamma is 1/2 and L is 2.
STILL = MBEC(gamma=0.5, chunk=2, slots=16, neighbours=1, write_rate=0.0, p_refine=0.0, trajectory=3, batch=2, reward_hidden=2)
SPEC = Spec((2,), 2, limit=6, iterations=40)
ENDS = replace(SPEC, limit_ends=True)


@cache
def compiled(agent, spec):
    return (
        jax.jit(lambda seed: agent.init(jax.random.key(seed), spec)),
        jax.jit(lambda *now: agent.act(now[0], spec, *now[1:])),
    )


@cache
def training(agent, spec, updates=1):
    """The model of trajectories is trained, or not, by a mind, what is stored, a step and a key."""
    return jax.jit(lambda mind, replay, step, key: episodic.train_trajectory(mind, agent, spec, replay, 10.0, step, key, updates))


def live(agent, spec, script, extra=8):
    """Feeds the agent with `script`: for each step, for each environment, a reward and "", "end" or "cut"; then `extra` steps
    without reward. Gives its lives, each environment's pairs of state and action, and the model of trajectories."""
    init, act = compiled(agent, spec)
    life, random = init(0), np.random.default_rng(0)
    nothing = [[(0.0, "")] * spec.envs]
    lives, pairs = [], [[] for _ in range(spec.envs)]
    for step, told in enumerate(nothing + script + nothing * extra):
        rewards, marks = zip(*told, strict=True)
        seen, final = random.normal(size=(2, spec.envs, 2)).astype(np.float32)
        timestep = TimeStep(
            seen,
            np.array(rewards, np.float32),
            np.array([mark == "end" for mark in marks]),
            np.array([mark == "cut" for mark in marks]),
            final,
        )
        life, action, _ = act(life, timestep, jnp.int32(step), jax.random.key(step))
        lives.append(life)
        for env in range(spec.envs):
            pairs[env].append(np.concatenate([seen[env], np.eye(2)[int(action[env])]]).astype(np.float32))
    return lives, pairs, life.mind.trajectory


def key_of(model, pairs, start, end):
    """The trajectory of an episode from its first pair to the one before `end`."""
    tau = fresh(STILL.trajectory)
    for pair in pairs[start:end]:
        tau = model(tau, pair)
    return np.asarray(tau.h)


def remembered(life, expected):
    """Compares the memory with pairs of a key and a value, in any order."""
    memory = life.mind.memory
    assert int(memory.filled) == len(expected)
    keys, values = np.asarray(memory.keys), np.asarray(memory.values)
    for key, value in expected:
        slot = np.abs(keys - key).sum(axis=1).argmin()
        np.testing.assert_allclose(keys[slot], key, atol=1e-6)
        assert values[slot] == pytest.approx(value, rel=1e-5, abs=1e-6)


FIVE = [[(1.0, "")], [(2.0, "")], [(4.0, "")], [(8.0, "")], [(16.0, "end")]]


def test_an_episode_leaves_every_second_step_and_its_end_with_the_returns_after_them():
    lives, (pairs,), model = live(STILL, SPEC, FIVE)
    # after t = 2: 4 + 8/2 + 16/4; after t = 4: 16; after the end nothing
    keys = [key_of(model, pairs, 0, t) for t in (2, 4, 5)]
    remembered(lives[-1], list(zip(keys, (12.0, 16.0, 0.0), strict=True)))


def test_they_are_written_one_a_step_from_the_end_on_and_in_order():
    lives, (pairs,), model = live(STILL, SPEC, FIVE)
    assert [int(life.mind.memory.written) for life in lives] == [0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3, 3]
    np.testing.assert_allclose(lives[5].mind.memory.keys[0], key_of(model, pairs, 0, 2), atol=1e-6)


def test_returns_may_go_undiscounted():
    lives, _, _ = live(replace(STILL, discount_memory=False), SPEC, FIVE)
    assert lives[-1].mind.memory.values[:3].tolist() == [28.0, 16.0, 0.0]


def test_an_episode_whose_last_step_is_a_multiple_of_the_chunk_is_not_remembered_there_twice():
    lives, (pairs,), model = live(STILL, SPEC, [[(1.0, "")], [(2.0, "")], [(4.0, "")], [(8.0, "end")]])
    remembered(lives[-1], [(key_of(model, pairs, 0, 2), 4 + 8 / 2), (key_of(model, pairs, 0, 4), 0.0)])


def test_the_next_episode_begins_with_an_empty_trajectory_and_counts_its_steps_anew():
    lives, (pairs,), model = live(STILL, SPEC, [*FIVE, [(3.0, "")], [(5.0, "")], [(7.0, "end")]])
    first = [(key_of(model, pairs, 0, t), value) for t, value in ((2, 12.0), (4, 16.0), (5, 0.0))]
    second = [(key_of(model, pairs, 5, 5 + t), value) for t, value in ((2, 7.0), (3, 0.0))]
    remembered(lives[-1], first + second)


CUT = [*FIVE, [(3.0, "")], [(5.0, "")], [(7.0, "cut")]]


def test_a_cut_episode_goes_on_in_memory_where_a_limit_is_no_end():
    lives, (pairs,), model = live(STILL, SPEC, CUT)
    # With K = 1 the rest is the value of the one memory nearest to where the episode was cut.
    memory, last = lives[7].mind.memory, key_of(model, pairs, 5, 8)
    nearest = np.linalg.norm(np.asarray(memory.keys)[: int(memory.filled)] - last, axis=1).argmin()
    assert int(memory.filled) == 3
    rest = float(memory.values[nearest])
    second = [(key_of(model, pairs, 5, 7), 7 + rest / 2), (last, rest)]
    first = [(key_of(model, pairs, 0, t), value) for t, value in ((2, 12.0), (4, 16.0), (5, 0.0))]
    remembered(lives[-1], first + second)


def test_a_cut_episode_ends_in_memory_where_a_limit_is_an_end():
    lives, (pairs,), model = live(STILL, ENDS, CUT)
    first = [(key_of(model, pairs, 0, t), value) for t, value in ((2, 12.0), (4, 16.0), (5, 0.0))]
    second = [(key_of(model, pairs, 5, 7), 7.0), (key_of(model, pairs, 5, 8), 0.0)]
    remembered(lives[-1], first + second)


def test_a_rest_is_discounted_by_the_steps_before_it():
    """A first memory of value 8, then a cut episode: with K = 1 and one key, whatever is read is 8."""
    script = [[(0.0, "")], [(0.0, "")], [(8.0, "")], [(0.0, "end")]]
    agent = replace(STILL, slots=1, chunk=3)
    lives, _, _ = live(agent, replace(SPEC, limit=30), script, extra=0)
    one = lives[-1].mind
    # after the end the first of two memories is written: t = 3, value 0; set it to 8 by hand and cut an episode after 4 steps
    mind = one._replace(memory=one.memory._replace(values=jnp.array([8.0])), waiting=one.waiting._replace(count=jnp.zeros(1, jnp.int32)))
    _, act = compiled(agent, replace(SPEC, limit=30))
    life = lives[-1]._replace(mind=mind)
    values = []
    for step, mark in enumerate(["", "", "", "cut", ""], start=5):
        flag = np.array([False])
        told = TimeStep(np.ones((1, 2), np.float32) * step, np.ones(1, np.float32), flag, flag | (mark == "cut"), np.ones((1, 2)))
        life, _, _ = act(life, told, jnp.int32(step), jax.random.key(step))
        values.append(float(life.mind.memory.values[0]))
    # t = 3 saw one more reward before the cut: 1 + 8/2; the end itself is worth what is read there then: 8
    assert values == [8.0, 8.0, 8.0, 5.0, 8.0]


def test_two_environments_do_not_mix():
    spec = replace(SPEC, envs=2)
    other = [(10.0, ""), (20.0, ""), (40.0, "end"), (5.0, ""), (6.0, "")]
    script = [[told, second] for (told,), second in zip(FIVE, other, strict=True)]
    lives, pairs, model = live(STILL, spec, script, extra=4)
    first = [(key_of(model, pairs[0], 0, t), value) for t, value in ((2, 12.0), (4, 16.0), (5, 0.0))]
    second = [(key_of(model, pairs[1], 0, t), value) for t, value in ((2, 40.0), (3, 0.0))]
    remembered(lives[-1], first + second)
    # the other's second episode is still being lived: its open memories have seen the reward after t = 2 and nothing else
    waiting = lives[-1].mind.waiting
    assert waiting.count.tolist() == [2, 3]  # t = 2, 4 and t = 2, 4, 6
    assert not np.any(waiting.returns[1][waiting.is_open[1]])


def test_an_episode_longer_than_its_limit_closes_its_oldest_memories_early():
    lives, _, _ = live(STILL, SPEC, [[(1.0, "")]] * 30, extra=0)
    ring = lives[0].mind.waiting.returns.shape[1]
    counts = [int(life.mind.waiting.count[0]) for life in lives]
    assert ring == 6 // 2 + 4
    assert max(counts) < ring
    assert int(lives[-1].mind.memory.written) == 15 - (ring - 2)  # one a chunk, but for those still waiting
    assert float(lives[-1].mind.memory.values[0]) == pytest.approx(2.0, rel=1e-2)  # 1 + 1/2 + 1/4 ...


# Every switch of the memory does something

BUSY = replace(STILL, neighbours=2, slots=4, write_rate=0.5, p_refine=0.3, p_read=0.5)
LONG = replace(SPEC, low=(-2.0, -2.0), high=(3.0, 3.0), iterations=100)


def outlook(agent):
    """The memory's values along a life of many short episodes."""
    random = np.random.default_rng(5)
    script = [[(float(random.normal()), "cut" if step % 5 == 4 else "end" if step % 7 == 6 else "")] for step in range(60)]
    lives, _, _ = live(agent, LONG, script, extra=0)
    return np.array([np.asarray(life.mind.memory.values) for life in lives])


@pytest.mark.parametrize(
    "options",
    [
        {"squared_distance": True},
        {"write_neighbours": 4},
        {"p_read": 1.0},
        {"p_refine": 0.0},
        {"write_rate": 0.1},
        {"forget": "unused"},
        {"discount_memory": False},
        {"key_dim": 2},
        {"reward_sees_trajectory": True},
        {"scale_inputs": True},
        {"time_limit_ends": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_switch_changes_what_is_remembered(options):
    changed = outlook(replace(BUSY, **options))
    assert np.isfinite(changed).all()
    assert np.abs(changed - outlook(BUSY)).max() > 1e-3


def test_only_what_a_decision_reads_counts_as_used():
    """With K = 1 each of two actions reads one memory, though a write would touch four."""
    agent = replace(BUSY, neighbours=1, write_neighbours=4, slots=8, forget="unused")
    lives, _, _ = live(agent, LONG, [[(1.0, "end" if step % 4 == 3 else "")] for step in range(30)], extra=9)
    assert int(lives[-1].mind.memory.filled) == 8
    assert 1 <= int((lives[-1].mind.memory.used == len(lives) - 1).sum()) <= 2


# Training of the trajectory model

ROWS = 8


CHUNKS = replace(STILL, chunk=3, cues=5)
STRETCHES = jax.jit(lambda *given: episodic._stretches(CHUNKS, replace(SPEC, shape=(1,)), *given))


@settings(max_examples=60)
@given(step=st.integers(1, 60), stored=st.integers(0, 70), seed=st.integers(0, 99))
def test_a_stretch_is_of_the_episode_being_lived(step, stored, seed):
    """Rows whose state tells the iteration: the chunk is the newest, cues are of the episode, answers follow them."""
    stored = min(stored, step)
    written = np.full(ROWS, -1.0, np.float32)
    for iteration in range(step):
        written[iteration % ROWS] = iteration
    row = jnp.array(written)[:, None]
    transition = rp.Transition(row[..., None], jnp.zeros((ROWS, 1), jnp.int32), row, row[..., None], row, row)
    before = models.Trajectory(row[..., None], -row[..., None])
    experience = Experience(transition, before, before)
    found = STRETCHES(jnp.array([stored]), experience, jnp.int32(step), jax.random.key(seed))
    stretch = jax.tree.map(lambda x: np.asarray(x)[0], found)
    known = min(stored, ROWS)
    assert bool(stretch.usable) == (known >= 2)
    if known < 2:
        return
    recent = min(known, 3)
    assert stretch.valid.tolist() == [False] * (3 - recent) + [True] * recent
    assert stretch.chunk[stretch.valid, 0].tolist() == list(range(step - recent, step))
    assert stretch.tau.h.tolist() == [step - recent]
    assert (stretch.cues[:, 0] >= step - known).all()
    assert (stretch.cues[:, 0] <= step - 2).all()
    np.testing.assert_array_equal(stretch.answers[:, 0], stretch.cues[:, 0] + 1)


@pytest.mark.parametrize("loss", ["recall", "prediction", "none"])
def test_the_trajectory_model_is_trained_every_chunk_by_the_loss_chosen(loss):
    agent = replace(STILL, trajectory_loss=loss, p_recall=1.0)
    lives, _, _ = live(agent, SPEC, FIVE, extra=3)  # 3 steps of the second episode are stored
    life = lives[-1]

    def train(step):
        return training(agent, SPEC)(life.mind, life.replay, step, jax.random.key(0))

    def change(step):
        pairs = zip(*(jax.tree.leaves(mind.trajectory) for mind in (train(jnp.int32(step)), life.mind)), strict=True)
        return max(float(np.abs(a - b).max()) for a, b in pairs)

    assert change(7) == 0  # L is 2
    if loss == "none":
        assert change(8) == 0
        return
    assert change(8) == pytest.approx(5e-4, rel=0.01)  # the first step of Adam is as long as its rate
    trained = train(jnp.int32(8))
    stretch = episodic._stretches(agent, SPEC, life.mind.age - 1, life.replay, jnp.int32(8), jax.random.split(jax.random.key(0), 3)[0])
    of_one = jax.tree.map(lambda x: x[0], stretch)
    noise = jax.random.split(jax.random.split(jax.random.key(0), 3)[1], 1)[0]
    expected = {"recall": models.recall_loss, "prediction": models.prediction_loss}[loss](life.mind.trajectory, of_one, noise)
    assert trained.recall_loss == pytest.approx(float(expected), rel=1e-5)


def test_two_trainings_at_once_are_one_after_another_each_on_half_of_the_environments():
    agent, spec = replace(STILL, p_recall=1.0), replace(SPEC, envs=4)
    lives, _, _ = live(agent, spec, [[(1.0, "")] * 4] * 2, extra=3)
    life, step, key = lives[-1], jnp.int32(6), jax.random.key(0)
    trained = training(agent, spec, 2)(life.mind, life.replay, step, key)

    cue_key, noise_key, _ = jax.random.split(key, 3)
    stretches = episodic._stretches(agent, spec, life.mind.age - 1, life.replay, step, cue_key)
    noise = jax.random.split(noise_key, 4)
    model, state, losses = life.mind.trajectory, life.mind.trajectory_optimiser, []

    def loss(model, of_half):
        return jnp.mean(jax.vmap(models.recall_loss, in_axes=(None, 0, 0))(model, *of_half))

    one = jax.jit(lambda *given: descend(optimiser(agent.trajectory_rate, 10.0), loss, *given))
    for half in (slice(2), slice(2, 4)):
        model, state, before = one(model, state, jax.tree.map(lambda x, half=half: x[half], (stretches, noise)))
        losses.append(float(before))
    for a, b in zip(*map(jax.tree.leaves, (trained.trajectory, model)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert trained.recall_loss == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != losses[1]


def test_an_episode_too_young_to_have_a_successor_trains_nothing():
    agent = replace(STILL, p_recall=1.0)
    lives, _, _ = live(agent, SPEC, FIVE, extra=1)
    life = lives[-1]
    after = training(agent, SPEC)(life.mind, life.replay, jnp.int32(6), jax.random.key(0))
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(life.mind), strict=True):
        np.testing.assert_array_equal(a, b)

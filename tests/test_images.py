"""Images of any environment are seen by convolutions, kept as bytes, and what an episode led to when it was cut is not forgotten."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import Kind, Place

from engram import loop
from engram.agents import DQN, DRQN, MBEC, NEC, PPO, MBECpp
from engram.agents.mbec import foresee
from engram.agents.ppo import run_once
from engram.errors import EngramError
from engram.networks import fresh
from engram.tasks import Task
from engram.types import Outcome, Spec, TimeStep
from engram.vision import CONVOLUTIONS, SMALLER, Vision, features, fitting, is_image, small, upright


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((84, 84, 3), "uint8", True),
        ((3, 84, 84), "uint8", True),
        ((5, 5), "uint8", True),
        ((7, 7, 3), "uint8", True),
        ((5, 4, 3), "uint8", False),
        ((2, 5, 4), "uint8", False),
        ((84, 84, 3), "float32", False),
        ((128,), "uint8", False),
        ((2, 9, 9, 3), "uint8", True),
        ((2, 9, 4, 3), "uint8", False),
        ((2, 2, 9, 9, 3), "uint8", False),
    ],
)
def test_bytes_with_five_pixels_each_way_are_an_image(shape, dtype, image):
    assert is_image(Spec(shape, 2, dtype)) == image


@pytest.mark.parametrize(
    ("shape", "wanted", "layers"),
    [
        ((84, 84, 4), "paper", CONVOLUTIONS["paper"]),
        ((4, 84, 84), "nature", CONVOLUTIONS["nature"]),
        ((68, 100), "paper", CONVOLUTIONS["paper"]),  # 68, 16, 7, 5, 3
        ((67, 100), "paper", CONVOLUTIONS["nature"]),
        ((52, 52), "paper", CONVOLUTIONS["nature"]),  # 52, 12, 5, 3
        ((51, 90, 3), "nature", SMALLER[0]),
        ((18, 18), "nature", SMALLER[0]),  # 18, 8, 3
        ((17, 90), "paper", SMALLER[1]),
        ((5, 5), "paper", SMALLER[1]),
    ],
)
def test_layers_leave_three_places_each_way_where_they_can(shape, wanted, layers):
    assert fitting(shape, wanted) == layers


def test_what_is_seen_does_not_depend_on_where_the_channels_are():
    image = np.random.default_rng(0).integers(0, 256, (9, 8, 3)).astype(np.uint8)
    turned = image.transpose(2, 0, 1)
    usual, other = (Vision(x.shape, SMALLER[1], jax.random.key(0)) for x in (image, turned))
    np.testing.assert_array_equal(usual(image.ravel()), other(turned.ravel()))
    np.testing.assert_array_equal(small(image.shape, image.ravel()), small(turned.shape, turned.ravel()))
    assert usual(image.ravel()).shape == (features(other),)
    assert not np.allclose(usual(image.ravel()), usual(image[::-1].ravel()))


@pytest.mark.parametrize(("shape", "axes"), [((2, 9, 8, 3), (0, 3, 1, 2)), ((2, 3, 9, 8), (0, 1, 2, 3))])
def test_a_stack_of_images_has_the_channels_of_all_of_them(shape, axes):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    np.testing.assert_array_equal(upright(shape, image.ravel()), image.transpose(axes).reshape(6, 9, 8))


@pytest.mark.parametrize(("colours", "stack"), [(3, 1), (4, 1), (3, 4)])
def test_an_image_is_made_small_in_all_its_colours_and_a_stack_in_its_first_and_last_image(colours, stack):
    image = np.zeros((stack, 42, 42, colours), np.uint8)
    image[-1, :2, 2:4, 1] = [[255, 0], [0, 255]]
    image[1:-1] = 99
    shape = image.shape if stack > 1 else image.shape[1:]
    made = small(shape, image.ravel()).reshape(-1, colours, 21, 21)
    assert len(made) == min(stack, 2)
    assert made[-1, 1, 0, 1] == pytest.approx(0.5)
    assert float(made.sum()) == pytest.approx(0.5)


def test_the_brightest_that_may_be_is_seen_as_1():
    image = np.random.default_rng(0).integers(0, 3, (9, 9)).astype(np.uint8)
    faint, bright = (Vision((9, 9), SMALLER[1], jax.random.key(0), brightest) for brightest in (2, 254))
    np.testing.assert_allclose(faint(image.ravel()), bright(127 * image.ravel()), rtol=1e-4, atol=1e-6)


# A task of two pictures


def picture(bright):
    """Its right half is bright, or its left one."""
    return jnp.where((jnp.arange(6) >= 3) == bright, jnp.uint8(200), jnp.uint8(30)) * jnp.ones((6, 1), jnp.uint8)


@dataclass(frozen=True)
class Pictures:
    """An episode begins with the dark picture or the bright one, with equal chances, and sees the bright one from then on. There action 1
    brings 1. It never ends, but is cut after three steps: with a gamma of 0.5 the bright picture is worth 2 and the dark one 1, as long as
    what a cut led to counts, and not what the next episode begins with."""

    def reset(self, params, key):
        bright = jax.random.bernoulli(key).astype(jnp.float32)
        return Place(jnp.int32(0), bright), picture(bright > 0)

    def step(self, params, place, action, key):
        reward = place.mark * (action == 1)
        return Place(place.t + 1, jnp.float32(1)), Outcome(picture(True), reward, reward, jnp.array(False), place.t == 2)


STEPS = 1_200
TASK, SPEC = Task("pictures", "", lambda: None, dynamics=Pictures(), params=Kind(0.0)), Spec((6, 6), 2, "uint8", limit=3, iterations=STEPS)
LEARNS = {"gamma": 0.5, "batch": 16, "epsilon_end": 0.3, "replay": 600}
LEARNERS = {
    "dqn": DQN(hidden=16, target_every=10, learning_rate=2e-3, **LEARNS),
    "mbec++": MBECpp(hidden=16, target_every=10, learning_rate=2e-3, chunk=2, slots=100, neighbours=3, **LEARNS),
    "nec": NEC(hidden=16, embedding=4, neighbours=5, slots=300, horizon=5, learning_rate=1e-4, **LEARNS),
    "drqn": DRQN(hidden=16, lstm=8, sequence=3, target_every=10, learning_rate=2e-3, **LEARNS),
    "ppo": PPO(gamma=0.5, hidden=16, rollout=48, epochs=6, minibatches=1, learning_rate=3e-3),
}


def values(agent, state, seen):
    """Of both actions, or of the state, where an episode begins with these pictures."""
    rows = seen.reshape(len(seen), -1)
    if isinstance(agent, DQN):
        return jax.vmap(state.q)(rows)
    if isinstance(agent, NEC):
        return agent.values(state, SPEC, seen)
    if isinstance(agent, DRQN):
        return state.q(fresh(len(seen), agent.lstm), rows[None], jnp.ones((1, len(seen)), bool))[1][0]
    if isinstance(agent, PPO):
        return run_once(state.networks, None, rows)[2]
    found, gist = agent.look(state, rows)
    _, q, tau = foresee(agent, state.life.mind, SPEC, agent.tell(state, gist), jnp.ones(len(seen), bool))
    return agent.beta(state.semantic, tau.h)[:, None] * q + agent.values(state.semantic, found, tau.h)


@pytest.mark.parametrize("name", LEARNERS)
def test_pictures_are_told_apart_and_a_cut_is_no_end(name):
    agent = LEARNERS[name]
    driver = loop.Scan(agent, [TASK], [0], SPEC)
    driver.start()
    driver.advance(STEPS)
    state = jax.tree.map(lambda x: x[0], driver.carry.agent)
    seen = jnp.stack([picture(False), picture(True)])
    worth = np.asarray(values(agent, state, seen))
    np.testing.assert_allclose(worth if worth.ndim == 1 else worth.max(axis=-1), [1.0, 2.0], atol=0.3)
    if worth.ndim > 1:
        np.testing.assert_allclose(worth[1], [1.0, 2.0], atol=0.3)
    _, action = agent.play(state, SPEC, seen, jnp.ones(2, bool), jax.random.key(0))
    assert action[1] == 1


# What is kept


def timestep(now, led_to, truncated):
    return TimeStep(now, jnp.zeros(2), jnp.zeros(2, bool), jnp.asarray(truncated), led_to)


@pytest.mark.parametrize("name", ["dqn", "mbec++"])
def test_replay_has_images_as_bytes_and_what_each_action_led_to(name):
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (10, 2, 9, 7, 3)), jnp.uint8)
    spec = Spec((9, 7, 3), 3, "uint8", envs=2, iterations=100)
    options = {"gist": 5, "standard_gist": False, "gist_of": "pixels"} if name == "mbec++" else {}
    agent = type(LEARNERS[name])(hidden=4, replay=8, **options)
    state = agent.init(jax.random.key(0), spec)
    act = jax.jit(lambda state, told, step: agent.act(state, spec, told, step, jax.random.key(1))[0])
    # The third action of one environment leads to image 9, where it is cut, and it shows image 3 then.
    for step in range(6):
        cut = jnp.array([step == 3, False])
        led_to = jnp.where(cut[:, None, None, None], images[9], images[step])
        state = act(state, timestep(images[step], led_to, cut), jnp.int32(step))

    rows, began, came = np.array([1, 2, 3, 0]), images[1:5], images[2:6].at[1, 0].set(images[9, 0])  # of four the first is overwritten
    replay = state.life.replay.transition if name == "mbec++" else state.replay
    assert replay.state.dtype == replay.next_state.dtype == jnp.uint8
    np.testing.assert_array_equal(replay.state[rows], began.reshape(4, 2, -1))
    np.testing.assert_array_equal(replay.next_state[rows], came.reshape(4, 2, -1))
    if name == "mbec++":
        drawn = agent.drawn(state.life.replay, (rows, np.zeros(4, int)))
        np.testing.assert_allclose(drawn.gist, agent.look(state, began[:, 0].reshape(4, -1))[1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(drawn.next_gist, agent.look(state, came[:, 0].reshape(4, -1))[1], rtol=1e-5, atol=1e-6)


def test_mbec_alone_sees_no_images():
    with pytest.raises(EngramError, match=r"MBEC alone has no network that learns to see images: use mbec\+\+ here\."):
        MBEC().init(jax.random.key(0), SPEC)


@pytest.mark.parametrize("agent", [DRQN(replay=64), PPO(), PPO(recurrent=True)])
def test_stacks_of_frames_are_seen_by_convolutions_too(agent):
    spec = Spec((4, 36, 36), 3, "uint8", stack=4, envs=2, iterations=600)
    state = jax.eval_shape(lambda key: agent.init(key, spec), jax.random.key(0))
    seen = TimeStep(jnp.zeros((2, *spec.shape), jnp.uint8), jnp.zeros(2), *jnp.zeros((2, 2), bool), jnp.zeros((2, 0), jnp.uint8))
    after, action, _ = jax.eval_shape(lambda state, seen: agent.act(state, spec, seen, jnp.int32(0), jax.random.key(0)), state, seen)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert action.shape == (2,)
    rows = after.replay.state if isinstance(agent, DRQN) else after.rollout.decision.state
    assert (rows.dtype, rows.shape[1:]) == (jnp.uint8, (2, 4 * 36 * 36))

"""MFEC with keys by a variational auto-encoder, which learns before the memory starts."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engram.agents.mfec import MFEC
from engram.episodic import dnd
from engram.errors import EngramError
from engram.types import Spec, TimeStep

VAE_STEPS, MEMORY_STEPS = 15, 9
AGENT = MFEC(
    key_encoder="vae",
    vae_steps=VAE_STEPS,
    key_size=2,
    num_neighbours=1,
    vae_batch_size=4,
    vae_lr=2e-3,
    gamma=0.5,
    epsilon_end=0.0,
    epsilon_decay=1e-3,
)
SPEC = Spec(
    (32, 32), 2, dtype="uint8", max_episode_steps=3, num_iterations=VAE_STEPS + MEMORY_STEPS
)


def square_image(side):
    """A bright square to the left (0) or to the right (1)."""
    image = np.zeros((1, 32, 32), np.uint8)
    image[0, 8:24, (2 if side == 0 else 18) :][:, :12] = 255
    return image


@pytest.fixture(scope="module")
def training():
    """State, action and metrics of each step.

    An episode has three images, left, right and left, each with reward 1.
    """

    @jax.jit
    def iterate(state, timestep, step):
        key = jax.random.fold_in(jax.random.key(1), step)
        state, action, metrics = AGENT.step(state, SPEC, timestep, step, key)
        state, learn_metrics = AGENT.learn(state, SPEC, step, key)
        return state, action, metrics | learn_metrics

    state = AGENT.init(jax.random.key(0), SPEC)
    steps = []
    for step in range(SPEC.num_iterations):
        image = square_image(step % 3 % 2)
        reward = np.array([float(step > 0)], np.float32)
        terminated = np.array([step % 3 == 0 and step > 0])
        timestep = TimeStep(image, reward, terminated, np.array([False]), image)
        state, action, metrics = iterate(state, timestep, jnp.int32(step))
        steps.append((state, int(action[0]), {name: float(x) for name, x in metrics.items()}))
    return steps


def test_greedy_actions_need_no_images_of_training(training):
    state = training[-1][0]
    smaller = AGENT.policy_state(state)
    assert (smaller.vae.images, smaller.vae.opt_state, smaller.pending) == (None, None, None)

    @jax.jit
    def act_greedy(state, image):
        return AGENT.act_greedy(state, SPEC, image, jnp.array([True]), jax.random.key(0))[1]

    for side in (0, 1):
        actions = [act_greedy(x, square_image(side)).tolist() for x in (state, smaller)]
        assert actions[0] == actions[1]


def test_the_auto_encoder_learns_before_the_memory_starts_and_is_then_fixed(training):
    losses = [metrics["vae_loss"] for _, _, metrics in training]
    assert np.mean(losses[VAE_STEPS - 3 : VAE_STEPS]) < 0.75 * np.mean(losses[:3])
    assert losses[VAE_STEPS:] == [losses[VAE_STEPS - 1]] * MEMORY_STEPS
    weights = [np.asarray(state.vae.vae.to_code.weight) for state, _, _ in training]
    is_same = [np.array_equal(a, b) for a, b in pairwise(weights)]
    assert is_same == [False] * (VAE_STEPS - 1) + [True] * MEMORY_STEPS


def test_actions_are_random_and_nothing_is_stored_before_the_memory_starts(training):
    # The schedule of epsilon, which starts at 1, begins with the memory.
    epsilons = [metrics["epsilon"] for _, _, metrics in training]
    assert epsilons == [1.0] * (VAE_STEPS + 1) + [0.0] * (MEMORY_STEPS - 1)
    assert 2 < sum(action for _, action, _ in training[:VAE_STEPS]) < VAE_STEPS - 2
    assert not any(int(state.pending.count[0]) for state, _, _ in training[:VAE_STEPS])
    sizes = [metrics["memory_size"] for _, _, metrics in training]
    # The first episode of the memory ends three steps later, and is written in the next one.
    assert sizes[: VAE_STEPS + 4] == [0] * (VAE_STEPS + 4)
    assert sizes[VAE_STEPS + 4] > 0


def test_unlike_images_have_unlike_keys_and_equal_images_equal_ones(training):
    state = training[-1][0]
    keys = jax.jit(lambda image: AGENT.keys(state, SPEC, image))
    left, right, left_again = (np.asarray(keys(square_image(side))) for side in (0, 1, 0))
    np.testing.assert_array_equal(left, left_again)
    assert np.linalg.norm(left - right) > 1e-3
    # Whatever the actions, three rewards of 1 follow the first image and two the second.
    near = dnd.lookup(state.dnd, jnp.concatenate([left, right]), 1)
    values = np.where(near.exact.T, dnd.read_mean(state.dnd, near), -np.inf)
    np.testing.assert_allclose(np.max(values, axis=-1), [1.75, 1.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "num_iterations", "message"),
    [
        (
            (4,),
            100,
            "A VAE needs images, arrays of two to four axes, but an observation has shape (4,): "
            "use key_encoder='projection'.",
        ),
        (
            (31, 64, 3),
            100,
            "A VAE needs images of at least 32 by 32 pixels, not 31 by 64: "
            "use key_encoder='projection'.",
        ),
        (
            (16, 16),
            100,
            "A VAE needs images of at least 32 by 32 pixels, not 16 by 16: "
            "use key_encoder='projection'.",
        ),
        (
            (32, 32),
            VAE_STEPS,
            f"The run ends before vae_steps ({VAE_STEPS}): lower it or raise steps.",
        ),
    ],
)
def test_observations_and_runs_that_do_not_suit_a_vae_are_refused(shape, num_iterations, message):
    with pytest.raises(EngramError) as error:
        AGENT.init(jax.random.key(0), Spec(shape, 2, num_iterations=num_iterations))
    assert str(error.value) == message

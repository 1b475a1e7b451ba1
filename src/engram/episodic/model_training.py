"""Training of the trajectory model (Eq. 1) and the reward model (Eq. 5)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from engram.episodic import trajectory_model
from engram.episodic.control import MAX_GRAD_NORM, EpisodicControlConfig, EpisodicState
from engram.episodic.trajectory_model import RecallSample, RewardModel
from engram.optim import gradient_step, make_optimizer
from engram.periodic import periodically
from engram.replay_buffer import Transition
from engram.types import Spec

P_RECALL = 0.5
"""p_rec, probability of training the trajectory model when a chunk is full"""
NUM_CUES = 4
"""past steps in one TR loss"""


def train_trajectory_model(
    state: EpisodicState,
    config: EpisodicControlConfig,
    spec: Spec,
    replay: Transition,
    step: Int[Array, ""],
    key: Key[Array, ""],
    model_input: Callable[[Array], Array] | None = None,
) -> EpisodicState:
    """Every L environment steps, with probability p_rec, one gradient step on the TR or TP loss.

    The samples are the current episodes of all environments. Steps count from the run's start and
    not from the episode's, so that all runs train at once. `model_input` makes the model's inputs
    of what replay holds.
    """
    if config.trajectory_loss == "none":
        return state
    is_recall = config.trajectory_loss == "recall"
    loss_of_one = trajectory_model.recall_loss if is_recall else trajectory_model.prediction_loss

    def loss(model, samples, noise_keys):
        losses = jax.vmap(loss_of_one, in_axes=(None, 0, 0))(model, samples, noise_keys)
        usable = samples.is_usable
        return jnp.sum(losses * usable) / jnp.maximum(jnp.sum(usable), 1)

    before = state.trajectory_model, state.trajectory_opt_state, state.trajectory_loss

    def train():
        cue_key, noise_key, coin_key = jax.random.split(key, 3)
        samples = recall_samples(
            config, spec, state.episode_step - 1, replay, step, cue_key, model_input
        )
        noise_keys = jax.random.split(noise_key, spec.num_envs)
        optimizer = make_optimizer(config.trajectory_lr, MAX_GRAD_NORM)
        after = gradient_step(optimizer, loss, *before[:2], samples, noise_keys)
        is_updated = jax.random.bernoulli(coin_key, P_RECALL) & jnp.any(samples.is_usable)
        return jax.tree.map(lambda new, old: jnp.where(is_updated, new, old), after, before)

    interval = max(1, config.chunk // spec.num_envs)
    is_due = lambda step: step % interval == 0  # noqa: E731
    model, opt_state, last_loss = periodically(is_due, step, train, lambda: before)
    return state._replace(
        trajectory_model=model, trajectory_opt_state=opt_state, trajectory_loss=last_loss
    )


def recall_samples(
    config: EpisodicControlConfig,
    spec: Spec,
    episode_length: Int[Array, "E"],
    replay: Transition,
    step: Int[Array, ""],
    key: Key[Array, ""],
    model_input: Callable[[Array], Array] | None = None,
) -> RecallSample:
    """The newest chunk of each environment's episode, and cues from anywhere in it.

    The episode's last `episode_length` steps are the newest rows of replay.
    """
    rows, num_envs = replay.action.shape[:2]
    stored = jnp.minimum(episode_length, rows)
    env = jnp.arange(num_envs)

    def pairs(iteration):
        index = iteration % rows, env[:, None]
        inputs = replay.model_input[index]
        if model_input is not None:
            inputs = model_input(inputs)
        return trajectory_model.state_action(inputs, replay.action[index], spec.num_actions)

    length = max(config.chunk, 2)
    newest = step - length + jnp.arange(length)
    first = (step - jnp.minimum(length, stored)) % rows
    drawn = jax.random.uniform(key, (num_envs, NUM_CUES)) * (stored - 1)[:, None]
    cues = (step - stored)[:, None] + drawn.astype(jnp.int32)
    return RecallSample(
        tau=jax.tree.map(lambda x: x[first, env], replay.tau),
        chunk=pairs(jnp.broadcast_to(newest, (num_envs, length))),
        mask=newest >= (step - stored)[:, None],
        cues=pairs(cues),
        answers=pairs(cues + 1),
        is_usable=stored >= 2,
    )


def train_reward_model(
    config: EpisodicControlConfig,
    model: RewardModel,
    opt_state: PyTree,
    state_action: Float[Array, "B X"],
    reward: Float[Array, "B"],
) -> tuple[RewardModel, PyTree, Float[Array, ""]]:
    """One gradient step on the reward model (Eq. 5), and the loss before it."""
    optimizer = make_optimizer(config.reward_lr, MAX_GRAD_NORM)
    return gradient_step(
        optimizer, trajectory_model.reward_loss, model, opt_state, state_action, reward
    )

"""Trajectory vectors in two dimensions: do they encode the true state despite noisy transitions?

Section 4.2 and the appendix."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from engram import runners
from engram.agents import make
from engram.agents.common import network_input
from engram.envs import get_task
from engram.episodic import control, trajectory_model
from engram.networks import zero_state
from engram.paper.experiment import Claim, Experiment, ExperimentResults
from engram.paper.figures import plot_trajectories
from engram.paper.noisy_control import AS_TRAINED
from engram.paper.verdicts import Comparison, compare, compare_to_threshold

TASK, STEPS, EPISODES, LENGTH = "mountaincar-transition", 20_000, 40, 100
LOSSES = {"TR loss": "recall", "untrained": "none", "TP loss": "prediction"}
NUM_DRAWN, GRID = 60, 0.05


class Episodes(NamedTuple):
    """Episodes of a policy that swings the car up, under transition noise."""

    state: Float[Array, "R T 2"]
    observation: Float[Array, "R T 2"]
    action: Int[Array, "R T"]
    is_stale: Bool[Array, "R T"]
    """whether the observation repeats an earlier state"""


def sample_episodes(length: int, count: int) -> Episodes:
    task = get_task(TASK)
    env, params = task.jax_env, task.env_params
    assert env is not None

    def step(carry, key):
        state, observation, is_stale = carry
        action = jnp.where(state.physics[1] >= 0, 2, 0)
        after, result = env.step(params, state, action, key)
        next_is_stale = jnp.any(result.observation != after.physics)
        outputs = Episodes(state.physics, observation, action, is_stale)
        return (after, result.observation, next_is_stale), outputs

    def episode(key):
        state, observation = env.reset(params, key)
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(length))
        return lax.scan(step, (state, observation, jnp.array(False)), keys)[1]

    return jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(5), count))


def encode_episode(
    model: trajectory_model.TrajectoryModel,
    features: Float[Array, "T S"],
    action: Int[Array, "T"],
    num_actions: int,
) -> Float[Array, "T H"]:
    """The trajectory vector after each step."""

    def step(tau, pair):
        tau = model(tau, pair)
        return tau, tau.h

    start = zero_state(model.cell.hidden_size)
    return lax.scan(step, start, trajectory_model.state_action(features, action, num_actions))[1]


def linear_r2(tau: np.ndarray, position: np.ndarray, is_stale: np.ndarray) -> float:
    """R² of the true position at stale observations, by a linear map fitted on other episodes."""
    half = len(tau) // 2
    inputs = np.concatenate([tau, np.ones((*tau.shape[:2], 1))], axis=-1)
    fit, *_ = np.linalg.lstsq(inputs[:half].reshape(-1, 3), position[:half].ravel(), rcond=None)
    stale, true = is_stale[half:], position[half:]
    squared_error = ((inputs[half:] @ fit - true) ** 2)[stale].mean()
    return float(1 - squared_error / true[stale].var())


def compute(quick: bool) -> dict[str, Any]:
    seeds, steps, count = (2, 400, 4) if quick else (10, STEPS, EPISODES)
    task = get_task(TASK, steps)
    spec = task.spec(1, steps)
    episodes = sample_episodes(LENGTH, count)
    position, is_stale = np.asarray(episodes.state)[..., 0], np.asarray(episodes.is_stale)
    numbers: dict[str, Any] = {"R2": {}, "spread": {}, "jump": {}, "plotted": {}}
    for label, loss in LOSSES.items():
        agent: Any = make("mbec++", "paper", **AS_TRAINED, trajectory_dim=2, trajectory_loss=loss)
        runner: Any = runners.make_runner(agent, *runners.cross_seeds([task], range(seeds)), spec)
        runner.start()
        runner.advance(steps)
        episodic = runner.run_state.agent.episodic
        features = jax.vmap(partial(network_input, agent, spec))(episodes.observation)
        encode = partial(encode_episode, num_actions=spec.num_actions)
        encode_all = jax.jit(jax.vmap(jax.vmap(encode, (None, 0, 0)), (0, None, None)))
        tau = np.asarray(encode_all(episodic.trajectory_model, features, episodes.action))
        spread = tau.std(axis=(1, 2)).mean(axis=-1)
        jump = np.linalg.norm(np.diff(tau, axis=2), axis=-1).mean(axis=(1, 2)) / spread
        numbers["R2"][label] = [linear_r2(seed, position, is_stale) for seed in tau]
        numbers["spread"][label] = spread.tolist()
        numbers["jump"][label] = jump.tolist()
        numbers["plotted"][label] = tau[0, 0, :NUM_DRAWN].round(4).tolist()
        if loss == "recall":
            numbers["values"] = value_map(jax.tree.map(lambda x: x[0], episodic), agent)
        runner.close()
    observation = np.asarray(episodes.observation)
    numbers["plotted"]["observation"] = observation[0, :NUM_DRAWN].round(4).tolist()
    numbers["plotted"]["is_stale"] = is_stale[0, :NUM_DRAWN].tolist()
    return numbers | {"steps": steps, "seeds": list(range(seeds))}


def value_map(episodic: control.EpisodicState, agent: Any) -> list[list[float]]:
    """The memory's value on a grid of trajectory vectors."""
    side = jnp.arange(-1, 1 + GRID / 2, GRID)
    keys = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
    values = control.read(episodic, agent, control.lookup(episodic, agent, keys))
    return np.asarray(values).reshape(len(side), len(side)).round(2).tolist()


def draw(results: ExperimentResults, path: Path) -> None:
    plotted, values = results.numbers["plotted"], np.array(results.numbers["values"])
    observed = ("position", "velocity"), np.array(plotted["observation"])
    trajectories = {label: np.array(plotted[label]) for label in LOSSES}
    plot_trajectories(observed, trajectories, np.array(plotted["is_stale"]), values, path)


def r2(results: ExperimentResults, label: str) -> np.ndarray:
    return np.array(results.numbers["R2"][label])


def keeps_trace(results: ExperimentResults) -> list[Comparison]:
    return [compare_to_threshold("R² − 0.5, TR loss", r2(results, "TR loss"), 0.5)]


def loses_trace(results: ExperimentResults) -> list[Comparison]:
    return [
        compare_to_threshold(f"0.5 − R², {label}", r2(results, label), 0.5, -1)
        for label in ("untrained", "TP loss")
    ]


def keeps_less(results: ExperimentResults) -> list[Comparison]:
    recall = r2(results, "TR loss")
    return [
        compare(f"TR loss − {label}", recall, r2(results, label))
        for label in ("untrained", "TP loss")
    ]


TRAJECTORY_SPACE = Experiment(
    name="trajectory-space",
    paper="Figure 5 (right) and the appendix's: trajectories of noisy-transition Mountain Car in "
    "two dimensions (H = 2)",
    compute=compute,
    draw=draw,
    presets="mbec++: preset `paper` with H = 2, two hidden layers and each trajectory loss",
    claims=(
        Claim(
            8,
            "TR representations keep the trace of noisy trajectories.",
            keeps_trace,
            "R² of the car's true position at stale observations, by a linear map of the "
            "trajectory vector fitted on other episodes, minus 0.5",
        ),
        Claim(
            8,
            "Those of an untrained model, or trained by the TP loss, do not.",
            loses_trace,
            "0.5 minus the same R²",
        ),
        Claim(
            8,
            "They keep less of it than TR representations.",
            keeps_less,
            "the same R², paired by seed",
        ),
    ),
)

"""Trajectories in two dimensions: does what is kept of a disturbed ride tell where the car really is? (Section 4.2, appendix)"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from engram import episodic, loop, models
from engram.agents import make
from engram.agents.shared import see
from engram.experiments.experiment import Claim, Experiment, Found
from engram.experiments.verdicts import against_bar, compare
from engram.networks import fresh
from engram.report.figures import scatter
from engram.tasks import find

TASK, STEPS, RIDES, LENGTH = "mountaincar-transition", 20_000, 40, 100
LOSSES = {"TR loss": "recall", "untrained": "none", "TP loss": "prediction"}
SHOWN, GRID = 60, 0.05


def ride(length: int, rides: int) -> tuple[Float[Array, "R T 2"], Float[Array, "R T 2"], Array, Bool[Array, "R T"]]:
    """Rides of a driver who swings the car up, under noise: where it was, what was seen, what was done, and whether what was seen is
    old."""
    task = find(TASK)
    dynamics, params = task.dynamics, task.params
    assert dynamics is not None

    def one(key):
        state, seen = dynamics.reset(params, key)

        def step(carried, t):
            state, seen, is_old = carried
            action = jnp.where(state.physics[1] >= 0, 2, 0)
            after, outcome = dynamics.step(params, state, action, jax.random.fold_in(key, t))
            return (after, outcome.observation, jnp.any(outcome.observation != after.physics)), (state.physics, seen, action, is_old)

        return lax.scan(step, (state, seen, jnp.array(False)), jnp.arange(length))[1]

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), rides))


def follow(model: models.TrajectoryModel, seen: Float[Array, "T S"], action: Array, actions: int) -> Float[Array, "T H"]:
    """The trajectory's vector after each step."""

    def step(tau, pair):
        tau = model(tau, pair)
        return tau, tau.h

    start = jax.tree.map(lambda x: x[0], fresh(1, model.cell.hidden_size))
    return lax.scan(step, start, models.pairs(seen, action, actions))[1]


def told(tau: np.ndarray, position: np.ndarray, is_old: np.ndarray) -> float:
    """R^2 of the car's true position, where what was seen is old, by a linear map of tau that was fitted on other rides."""
    half = len(tau) // 2
    inputs = np.concatenate([tau, np.ones((*tau.shape[:2], 1))], axis=-1)
    fit, *_ = np.linalg.lstsq(inputs[:half].reshape(-1, 3), position[:half].ravel(), rcond=None)
    wrong = ((inputs[half:] @ fit - position[half:]) ** 2)[is_old[half:]].mean()
    return float(1 - wrong / position[half:][is_old[half:]].var())


def compute(quick: bool) -> dict[str, Any]:
    seeds, steps, rides = (2, 400, 4) if quick else (10, STEPS, RIDES)
    task = find(TASK, steps)
    spec = task.spec(1, steps)
    physics, seen, action, is_old = ride(LENGTH, rides)
    found: dict[str, Any] = {"R2": {}, "spread": {}, "jump": {}, "shown": {}}
    for label, loss in LOSSES.items():
        agent: Any = make("mbec++", "paper", trajectory=2, trajectory_loss=loss)
        driver: Any = loop.driver(agent, *loop.every_seed([task], range(seeds)), spec)
        driver.start()
        driver.advance(steps)
        minds = driver.carry.agent.life.mind
        inputs = jax.vmap(lambda ride, agent=agent: see(agent, spec, ride))(seen)
        rides_of = jax.vmap(follow, in_axes=(None, 0, 0, None))
        tau = np.asarray(jax.jit(jax.vmap(rides_of, in_axes=(0, None, None, None)), static_argnums=3)(minds.trajectory, inputs, action, 3))
        found["R2"][label] = [told(one, np.asarray(physics)[..., 0], np.asarray(is_old)) for one in tau]
        spreads = tau.std(axis=(1, 2)).mean(axis=-1)
        found["spread"][label] = spreads.tolist()
        found["jump"][label] = (np.linalg.norm(np.diff(tau, axis=2), axis=-1).mean(axis=(1, 2)) / spreads).tolist()
        found["shown"][label] = tau[0, 0, :SHOWN].round(4).tolist()
        if loss == "recall":
            found["values"] = value_map(jax.tree.map(lambda x: x[0], minds), agent)
        driver.close()
    found["shown"]["seen"] = np.asarray(seen)[0, :SHOWN].round(4).tolist()
    found["shown"]["old"] = np.asarray(is_old)[0, :SHOWN].tolist()
    return found | {"steps": steps, "seeds": list(range(seeds))}


def value_map(mind: episodic.Mind, agent: Any) -> list[list[float]]:
    """What the memory says of every place of the trajectories' plane."""
    side = jnp.arange(-1, 1 + GRID / 2, GRID)
    places = jnp.stack(jnp.meshgrid(side, side), axis=-1).reshape(-1, 2)
    values = episodic.read(mind, agent, episodic.recall(mind, agent, places))
    return np.asarray(values).reshape(len(side), len(side)).round(2).tolist()


def draw(found: Found, path: Path) -> None:
    shown = found.numbers["shown"]
    panels = {"state space, as seen": shown["seen"], **{f"trajectories, {label}": shown[label] for label in LOSSES}}
    scatter({title: np.array(points) for title, points in panels.items()}, np.array(shown["old"]), np.array(found.numbers["values"]), path)


def of(found: Found, label: str) -> np.ndarray:
    return np.array(found.numbers["R2"][label])


SPACE = Experiment(
    name="trajectory-space",
    paper="Figure 5 (right) and the appendix's: trajectories of noisy-transition Mountain Car in two dimensions (H = 2)",
    compute=compute,
    draw=draw,
    claims=(
        Claim(
            8,
            "TR representations keep the trace of noisy trajectories.",
            lambda found: [against_bar("R² − 0.5, TR loss", of(found, "TR loss"), 0.5)],
            "R² of the car's true position, where what was seen is old, by a linear map of the trajectory's vector fitted on other rides, "
            "less 0.5",
        ),
        Claim(
            8,
            "Those of an untrained model, or trained by the TP loss, do not.",
            lambda found: [against_bar(f"0.5 − R², {label}", of(found, label), 0.5, -1) for label in ("untrained", "TP loss")],
            "0.5 less the same",
        ),
        Claim(
            8,
            "They keep less of it than TR representations.",
            lambda found: [compare(f"TR loss − {label}", of(found, "TR loss"), of(found, label)) for label in ("untrained", "TP loss")],
            "the same R², by seed",
        ),
    ),
)

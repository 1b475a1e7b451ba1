"""Whether memories of Atari are worth asking: how well they foretell returns, beside the Q-network that lives them.

    python -m engram.experiments.foretelling run alien gopher
    python -m engram.experiments.foretelling report

A DQN is trained on a game, and minds with different options of the episodic system watch: the same images, actions and rewards, which
they learn from and remember while none of them has a say. They read and refine by the average rule, and each of their models has one
update an iteration, where MBEC++'s have four. What each says of the actions taken is held against the discounted return that followed, in
the second half of the training. Where a mind is told what the convolutions find, these are the DQN's, as they were at that moment.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import lax
from jaxtyping import Bool, Float, Int

from engram import episodic, loop, standard
from engram.agents import DQN, MBEC, make
from engram.agents.mbec import Life, born, take_in
from engram.errors import EngramError
from engram.experiments.running import known, main, markdown
from engram.networks import head, trunk
from engram.provenance import describe_machine
from engram.records import replacing
from engram.tasks import find
from engram.tasks.atari import SKIP
from engram.types import Spec, TimeStep
from engram.vision import small

FORETOLD = Path("results/atari-foretelling.json")
MINDS: dict[str, dict[str, Any]] = {
    f"{of}, L = {chunk}, K = {neighbours}": {"of": of, "chunk": chunk, "neighbours": neighbours}
    for of, chunk, neighbours in (
        ("features", 100, 7),
        ("features", 10, 7),
        ("features", 10, 25),
        ("first features", 10, 7),
        ("pixels", 100, 7),
        ("pixels", 10, 7),
        ("pixels", 10, 25),
        ("pixels", 4, 25),
    )
}
"""what each is told of, and options; the first as the paper has it. First features are those of the network before it learnt."""
ENVS, GIST = 16, 32
"""consoles, and numbers that minds are told of an image"""
SETTLED = 400
"""last iterations that do not count: what followed on them is not known yet"""


class Stream(NamedTuple):
    """What E environments lived through in T iterations."""

    gist: dict[str, Float[np.ndarray, "T E G"]]
    """of what was seen, by what it is a map of"""
    action: Int[np.ndarray, "T E"]
    value: Float[np.ndarray, "T E"]
    """of the action, as the Q-network saw it"""
    reward: Float[np.ndarray, "T E"]
    """that followed it"""
    done: Bool[np.ndarray, "T E"]
    spec: Spec
    """of the task"""


@dataclass(frozen=True)
class Run:
    """Trains DQN on games, and lets minds watch."""

    games: Annotated[tuple[str, ...], tyro.conf.Positional]
    steps: int = 40_000
    """agent steps, of four emulator frames each"""
    seed: int = 100
    convolutions: str = "nature"
    slots: int = 20_000
    """of each memory"""
    out: Path = FORETOLD

    def __call__(self) -> None:
        known(self.out)  # which is better said before the training than after it
        if (least := 2 * SETTLED * ENVS) >= self.steps:
            raise EngramError(f"Of {self.steps:,} steps too few would count: train for more than {least:,} (--steps).")
        for game in self.games:
            begin = {"learn_start": max(1, self.steps // 8), "epsilon_decay": self.steps / 4}
            agent: Any = make("dqn", "atari", convolutions=self.convolutions, replay=self.steps, **begin)
            stream = lived(agent, f"atari:{game}", self.seed, self.steps)
            returns = discounted(stream, agent.gamma)
            minds = {name: foretold(stream, returns, *watched(stream, self.slots, options)) for name, options in MINDS.items()}
            row = {"game": game, "seed": self.seed, "steps": self.steps, "emulator_frames": self.steps * SKIP}
            row |= {"convolutions": self.convolutions, "slots": self.slots, "minds": minds} | describe_machine()
            with replacing(self.out) as file:
                others = [old for old in known(self.out) if any(old[name] != row[name] for name in ("game", "seed", "steps"))]
                file.write((json.dumps([*others, row], indent=1) + "\n").encode())
            print(table([row]), flush=True)


def lived(agent: DQN, name: str, seed: int, steps: int) -> Stream:
    """What a DQN lives through while it learns."""
    task = find(name)
    spec = task.spec(ENVS, steps // ENVS)
    driver: Any = loop.driver(agent, [task], [seed], spec)
    driver.start()
    first = jax.tree.map(lambda x: jnp.copy(x[0]), agent.acting(driver.carry.agent))

    @jax.jit
    def look(network, seen):
        ways = {"features": partial(trunk, network), "first features": partial(trunk, first), "pixels": partial(small, spec.shape)}
        found = {of: jax.vmap(way)(seen) for of, way in ways.items()}
        gists = {of: x @ jax.random.normal(jax.random.key(seed), (x.shape[1], GIST)) / jnp.sqrt(x.shape[1]) for of, x in found.items()}
        return gists, jax.vmap(head(network))(found["features"])

    rows = []
    while driver.iteration < spec.iterations:
        network = jax.tree.map(lambda x: x[0], agent.acting(driver.carry.agent))
        gists, values = look(network, jnp.asarray(driver.timestep.observation[0]).reshape(ENVS, -1))
        gists, values = jax.tree.map(np.asarray, (gists, values))  # before the device writes over the networks
        driver.advance(1)
        action, now = np.asarray(driver.carry.agent.action[0]), driver.timestep
        rows.append((gists, action, values[np.arange(ENVS), action], now.reward[0], now.terminated[0]))
    driver.close()
    return Stream(*jax.tree.map(lambda *x: np.stack(x), *rows), spec=spec)


def discounted(stream: Stream, gamma: float) -> Float[np.ndarray, "T E"]:
    """The returns that followed."""
    returns = np.zeros_like(stream.reward)
    following = np.zeros_like(stream.reward[0])
    for t in reversed(range(len(returns))):
        returns[t] = following = stream.reward[t] + gamma * following * ~stream.done[t]
    return returns


def watched(stream: Stream, slots: int, options: dict[str, Any]) -> tuple[Float[np.ndarray, "T E"], int]:
    """What a mind that watches says of the actions taken, and how many memories it has in the end."""
    own = {name: value for name, value in options.items() if name != "of"}
    gist = stream.gist[options["of"]]
    iterations, envs, size = gist.shape
    agent = MBEC(slots=slots, replay=iterations * envs, **own)
    spec = replace(stream.spec, shape=(size,), dtype="float32", stack=0)

    def step(carried: tuple[Life, standard.Norm], happened):
        life, norm = carried
        t, gist, reward, done, action = happened
        norm = standard.meet(norm, gist)
        told = standard.in_deviations(norm, gist)
        key = jax.random.fold_in(jax.random.key(0), t)
        lots = jax.random.uniform(key, (1 + envs,)).at[0].set(0.0)  # the average rule
        life, now = take_in(agent, life, spec, TimeStep(told, reward, done, jnp.zeros(envs, bool), told), t)
        mind, tau, plan, q = episodic.consider(life.mind, agent, spec, now, agent.gamma, t, lots)
        mind = episodic.advance(mind, tau, plan, action, now.done)
        life, _ = agent.learn(life._replace(mind=mind, action=action), spec, t, jax.random.fold_in(key, 1))
        return (life, norm), q[jnp.arange(envs), action]

    def before(x):
        return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])

    happened = jnp.arange(iterations), gist, before(stream.reward), before(stream.done), stream.action
    begin = born(agent, spec, jax.random.key(1)), standard.unmet(size)
    (life, _), said = jax.jit(lambda begin, happened: lax.scan(step, begin, happened))(begin, happened)
    return np.asarray(said), int(life.mind.memory.filled)


def foretold(stream: Stream, returns: np.ndarray, said: np.ndarray, memories: int) -> dict[str, float]:
    """How well it foretells the returns, and how much of their variance the Q-network tells, alone and with it: by a linear regression of
    the same numbers, to which anything adds a little."""
    counted = slice(len(returns) // 2, len(returns) - SETTLED)
    target, q, memory = (x[counted] for x in (returns, stream.value, said))
    found = {
        "memories": memories,
        "return": target.mean(),
        "q": q.mean(),
        "memory": memory.mean(),
        "q_r": correlation(target, q),
        "q_r_error": error(correlation, target, q),
        "memory_r": correlation(target, memory),
        "memory_r_error": error(correlation, target, memory),
        "q_told": told(target, q),
        "both_told": told(target, q, memory),
    }
    return {name: float(f"{x:.4g}") for name, x in found.items()}


def correlation(one: Float[np.ndarray, "T E"], other: Float[np.ndarray, "T E"]) -> float:
    """Pearson's; 0 where one of them is always the same."""
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0


def told(target: Float[np.ndarray, "T E"], *by: Float[np.ndarray, "T E"]) -> float:
    """The share of the target's variance that a linear regression tells; nothing of none."""
    inputs = np.stack([np.ones(target.size), *(x.ravel() for x in by)], axis=1)
    rest = target.ravel() - inputs @ np.linalg.lstsq(inputs, target.ravel())[0]
    return float(1 - rest.var() / target.var()) if target.std() > 0 else 0.0


def error(statistic: Callable[..., float], *of: Float[np.ndarray, "T E"]) -> float:
    """Its standard error, by leaving out one console after another (jackknife): what a console lives through hangs together."""
    envs = of[0].shape[1]
    without = [statistic(*(np.delete(x, e, axis=1) for x in of)) for e in range(envs)]
    return float(np.sqrt((envs - 1) * np.var(without)))


@dataclass(frozen=True)
class Report:
    """Prints the table."""

    out: Path = FORETOLD

    def __call__(self) -> None:
        print(table(known(self.out)))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each game and mind."""
    lines = [
        [
            row["game"],
            name,
            f"{mind['memories']:,.0f}",
            f"{mind['memory']:.2f} ({mind['return']:.2f})",
            f"{mind['memory_r']:.2f} ± {mind['memory_r_error']:.2f}",
            f"{mind['q_r']:.2f} ± {mind['q_r_error']:.2f}",
            f"{mind['q_told']:.1%}, {mind['both_told']:.1%}",
        ]
        for row in rows
        for name, mind in row["minds"].items()
    ]
    head = [
        "game",
        "told of",
        "memories",
        "mean (of returns)",
        "its correlation with returns",
        "the Q-network's",
        "variance told by the Q-network, by both",
    ]
    return markdown(head, lines)


if __name__ == "__main__":
    main(Run, Report)

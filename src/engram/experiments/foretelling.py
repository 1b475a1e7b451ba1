"""Whether memories of Atari are worth asking: how well they foretell returns, beside the Q-network that lives them.

    python -m engram.experiments.foretelling run alien gopher
    python -m engram.experiments.foretelling report

A DQN is trained on a game, and minds with different options of the episodic system watch: the same images, actions and rewards, which
they learn from and remember as MBEC++ does, while none of them has a say. What each says of the actions taken is held against the
discounted return that followed, in the second half of the training; and by how much an action is said to be better than the others,
against what is left of the return when that is known which is said of all actions. Where a mind is told what the convolutions find, these
are the DQN's, as they were at that moment.
"""

import json
from collections.abc import Sequence
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
from engram.experiments.running import main, markdown
from engram.networks import head, small, trunk
from engram.provenance import describe_machine
from engram.records import replacing
from engram.tasks import find
from engram.tasks.atari import SKIP
from engram.types import Spec, TimeStep

FORETOLD = Path("results/atari-foretelling.json")
MINDS: dict[str, dict[str, Any]] = {
    f"{of}, L = {chunk}, K = {neighbours}": {"gist_of": of, "chunk": chunk, "neighbours": neighbours}
    for of in ("features", "pixels")
    for chunk, neighbours in ((100, 7), (10, 7), (10, 25), (4, 25))
}
"""the first as the paper has it"""
GIST = 32
"""numbers that minds are told of an image"""
SETTLED = 200
"""last iterations that do not count: what followed on them is not known yet"""


class Stream(NamedTuple):
    """What E environments lived through in T iterations."""

    gist: dict[str, Float[np.ndarray, "T E G"]]
    """of what was seen, by what it is a map of"""
    action: Int[np.ndarray, "T E"]
    value: Float[np.ndarray, "T E 2"]
    """of the action, and of all actions in the mean, as the Q-network saw it"""
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
        for game in self.games:
            begin = {"learn_start": max(1, self.steps // 8), "epsilon_decay": self.steps / 4}
            agent: Any = make("dqn", "atari", convolutions=self.convolutions, replay=self.steps, **begin)
            stream = lived(agent, f"atari:{game}", self.seed, self.steps)
            returns = discounted(stream, agent.gamma)
            minds = {name: foretold(stream, returns, *watched(stream, self.slots, options)) for name, options in MINDS.items()}
            row = {"game": game, "seed": self.seed, "steps": self.steps, "emulator_frames": self.steps * SKIP}
            row |= {"convolutions": self.convolutions, "slots": self.slots, "minds": minds} | describe_machine()
            with replacing(self.out) as file:
                file.write((json.dumps([*known(self.out), row], indent=1) + "\n").encode())
            print(table([row]), flush=True)


def known(file: Path) -> list[dict[str, Any]]:
    """What was found so far."""
    try:
        return json.loads(file.read_text()) if file.exists() else []
    except ValueError as error:
        raise EngramError(f"{file} cannot be read ({error}): mend it, or name another file with --out.") from error


def lived(agent: DQN, name: str, seed: int, steps: int) -> Stream:
    """What a DQN lives through while it learns."""
    task = find(name)
    envs = loop.usual_envs(agent, task)
    spec = task.spec(envs, steps // envs)
    driver: Any = loop.driver(agent, [task], [seed], spec)
    driver.start()

    @jax.jit
    def look(state, seen):
        network = agent.acting(state)
        found = {"features": jax.vmap(partial(trunk, network))(seen), "pixels": jax.vmap(partial(small, spec.shape))(seen)}
        gists = {of: x @ jax.random.normal(jax.random.key(seed), (x.shape[1], GIST)) / jnp.sqrt(x.shape[1]) for of, x in found.items()}
        return gists, jax.vmap(head(network))(found["features"])

    rows = []
    while driver.iteration < spec.iterations:
        state = jax.tree.map(lambda x: x[0], driver.carry.agent)
        gists, values = look(state, jnp.asarray(driver.timestep.observation[0]).reshape(envs, -1))
        gists, values = jax.tree.map(np.asarray, (gists, values))  # before the device writes over the networks
        driver.advance(1)
        action, now = np.asarray(driver.carry.agent.action[0]), driver.timestep
        rows.append((gists, action, valued(values, action), now.reward[0], now.terminated[0]))
    driver.close()
    return Stream(*jax.tree.map(lambda *x: np.stack(x), *rows), spec=spec)


def valued(q: Float[np.ndarray, "E A"], action: Int[np.ndarray, "E"]) -> Float[np.ndarray, "E 2"]:
    """The values of the actions, and the means of all."""
    return np.stack([q[np.arange(len(q)), action], q.mean(axis=1)], axis=-1)


def discounted(stream: Stream, gamma: float) -> Float[np.ndarray, "T E"]:
    """The returns that followed."""
    returns = np.zeros_like(stream.reward)
    following = np.zeros_like(stream.reward[0])
    for t in reversed(range(len(returns))):
        returns[t] = following = stream.reward[t] + gamma * following * ~stream.done[t]
    return returns


def watched(stream: Stream, slots: int, options: dict[str, Any]) -> tuple[Float[np.ndarray, "T E 2"], int]:
    """What a mind that watches says of the actions taken and of all in the mean, and how many memories it has in the end."""
    own = {name: value for name, value in options.items() if name != "gist_of"}
    gist = stream.gist[options["gist_of"]]
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
        return (life, norm), jnp.stack([q[jnp.arange(envs), action], jnp.mean(q, axis=-1)], axis=-1)

    def before(x):
        return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])

    happened = jnp.arange(iterations), gist, before(stream.reward), before(stream.done), stream.action
    begin = born(agent, spec, jax.random.key(1)), standard.unmet(size)
    (life, _), said = jax.jit(lambda begin, happened: lax.scan(step, begin, happened))(begin, happened)
    return np.asarray(said), int(life.mind.memory.filled)


def foretold(stream: Stream, returns: np.ndarray, said: np.ndarray, memories: int) -> dict[str, float]:
    """How well it foretells the returns, and how much of their variance the Q-network tells, alone and with it (linear regression)."""
    counted = slice(len(returns) // 2, len(returns) - SETTLED)
    target = returns[counted].ravel()
    (q, q_mean), (memory, memory_mean) = (x[counted].reshape(-1, 2).T for x in (stream.value, said))
    rest = unexplained(target, [q_mean, memory_mean])
    found = {
        "memories": memories,
        "return": target.mean(),
        "q": q.mean(),
        "memory": memory.mean(),
        "q_r": correlation(target, q),
        "memory_r": correlation(target, memory),
        "q_told": told(target, [q]),
        "both_told": told(target, [q, memory]),
        "q_choice_r": correlation(rest, q - q_mean),
        "memory_choice_r": correlation(rest, memory - memory_mean),
    }
    return {name: float(f"{x:.4g}") for name, x in found.items()}


def correlation(one: Float[np.ndarray, "n"], other: Float[np.ndarray, "n"]) -> float:
    """Pearson's; 0 where one of them is always the same."""
    return float(np.corrcoef(one, other)[0, 1]) if one.std() > 0 and other.std() > 0 else 0.0


def told(target: Float[np.ndarray, "n"], by: Sequence[Float[np.ndarray, "n"]]) -> float:
    """The share of the target's variance that a linear regression tells; nothing of none."""
    return float(1 - unexplained(target, by).var() / target.var()) if target.std() > 0 else 0.0


def unexplained(target: Float[np.ndarray, "n"], by: Sequence[Float[np.ndarray, "n"]]) -> Float[np.ndarray, "n"]:
    """What a linear regression leaves of the target."""
    inputs = np.stack([np.ones_like(target), *by], axis=1)
    return target - inputs @ np.linalg.lstsq(inputs, target)[0]


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
            f"{mind['memory_r']:.2f} ({mind['q_r']:.2f})",
            f"{mind['q_told']:.1%}, {mind['both_told']:.1%}",
            f"{mind['memory_choice_r']:.3f} ({mind['q_choice_r']:.3f})",
        ]
        for row in rows
        for name, mind in row["minds"].items()
    ]
    head = [
        "game",
        "told of",
        "memories",
        "mean (of returns)",
        "correlation (of the Q-network's)",
        "variance told by the Q-network, by both",
        "correlation of choices (of the Q-network's)",
    ]
    return markdown(head, lines)


if __name__ == "__main__":
    main(Run, Report)

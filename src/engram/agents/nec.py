"""Neural episodic control (Pritzel et al. 2017): a learned embedding of states, and for each action a differentiable dictionary."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from engram import replay as rp
from engram import tables as tb
from engram import waiting as wt
from engram.agents.shared import (
    Learning,
    Sighted,
    check_neighbours,
    check_replay,
    due,
    ends,
    epsilon,
    explore,
    greedy,
    network,
    nothing_seen,
    rate,
    room_for,
    shown,
    to_judge,
)
from engram.memory import Memory
from engram.networks import MLP, Seeing, choosable, clipped, draw, optimiser
from engram.options import Count, Positive, Probability
from engram.schedule import when
from engram.types import Spec, TimeStep


class Row(NamedTuple):
    """A row of replay. Its N-step return comes later than its state and action."""

    state: Any  # Float[Array, "*B S"], or a film
    action: Int[Array, "*B"]
    target: Float[Array, "*B"]
    known: Float[Array, "*B"]
    """1 once the return is there, else 0"""


class Entry(NamedTuple):
    """What an action leaves to be written once its return is known: into the dictionary, and into its row of replay."""

    key: Float[Array, "*E D"]
    action: Int[Array, "*E"]
    iteration: Int[Array, "*E"]


class Lookup(NamedTuple):
    """What the value of a state and an action is made of; all of it learns."""

    embedding: MLP | Seeing
    keys: Float[Array, "B K D"]
    values: Float[Array, "B K"]


class State(NamedTuple):
    embedding: MLP | Seeing
    optimiser: PyTree
    tables: Memory
    replay: Row
    waiting: wt.Waiting
    loss: Float[Array, ""]
    """the last"""


@dataclass(frozen=True)
class NEC(Sighted, Learning):
    """Acts by a differentiable dictionary of N-step returns over learned keys."""

    learn_every: Count = 4
    """iterations between two updates"""
    replay: Count = 100_000
    """transitions kept"""
    learning_rate: Positive = 5e-4
    """of Adam, for the embedding"""
    anneal: bool = False
    """whether this learning rate falls to 0 in a straight line over the run"""
    hidden: Count = 64
    """width of the embedding network's hidden layer"""
    embedding: Count = 64
    """length of a key"""
    neighbours: Count = 50
    """K, how many entries a value is read from"""
    slots: Count = 500_000
    """of each action's dictionary"""
    delta: Positive = 1e-3
    """in the kernel 1 / (d^2 + delta)"""
    horizon: Count = 100
    """N, rewards that a return gathers before it is estimated"""
    write_rate: Probability = 0.1
    """alpha, how far the value of a key that is known moves towards a new one"""
    dictionary_rate: Positive = 0.1
    """learning rate of the dictionary's keys and values"""

    def __post_init__(self):
        super().__post_init__()
        check_neighbours(self)

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        check_replay(self, spec, 3 * self.horizon, f"three times the horizon of {self.horizon}")
        embedding = draw(lambda key: network(spec, self.convolutions, (self.hidden, self.embedding), key), key)
        nothing, count = jnp.zeros(spec.envs), jnp.zeros(spec.envs, jnp.int32)
        # Never more wait than two horizons: one that is open, and one that closed when an episode ended.
        entry = Entry(jnp.zeros((spec.envs, self.embedding)), count, count)
        return State(
            embedding=embedding,
            optimiser=optimiser(self.learning_rate, self.clip).init(embedding),
            tables=tb.empty(spec.actions, tb.size(self.slots, spec)[0], self.embedding),
            replay=room_for(self, spec, Row(nothing_seen(spec), count, nothing, nothing)),
            waiting=wt.empty(entry, 2 * self.horizon + 4),
            loss=jnp.zeros(()),
        )

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        envs, forget = spec.envs, tb.size(self.slots, spec)[1]
        judged = shown(self, spec, to_judge(self, spec, timestep))
        seen, h = judged[:envs], jax.vmap(state.embedding)(judged)
        waiting = wt.accumulate(state.waiting, timestep.reward, self.gamma)
        ready = wt.oldest(waiting, tb.WRITES)
        new = tb.writing(ready, spec.actions)
        near = tb.recall(state.tables, jnp.concatenate([h, new.key]), self.neighbours, self.delta)
        read, written = tb.split(near, (len(h), tb.WRITES * envs))
        tables, q = tb.settled(state.tables, tb.read_weighted(state.tables, read))
        q = choosable(spec, q)
        q, q_reached = q[:envs], q[-envs:]
        tables = tb.write(tables, written, new, step, forget, self.write_rate)
        if forget == "unused":
            (present,) = tb.split(read, (envs,))
            tables = tb.touch(tables, present, step)

        chance = epsilon(self, spec, step)
        action = explore(q, chance, jax.random.uniform(key, (2, envs)))
        rest = jnp.where(ends(self, spec, timestep), 0.0, jnp.max(q_reached, axis=-1))
        waiting = wt.drop(waiting, jnp.sum(ready.when, axis=-1))
        waiting = wt.close(waiting, timestep.terminated | timestep.truncated, rest, self.horizon)
        waiting = wt.append(waiting, Entry(h[:envs], action, jnp.full(envs, step)))
        states = state.replay.state
        states = rp.shoot(states, timestep.observation, step) if spec.stack else rp.store(states, seen, step)
        rest = self.complete(state.replay, ready)._replace(state=None)
        replay = rp.store(rest, Row(None, action, jnp.zeros(envs), jnp.zeros(envs)), step)._replace(state=states)
        metrics = {
            "epsilon": chance,
            "value": jnp.mean(jnp.max(q, axis=-1)),
            "memory": jnp.sum(tables.filled).astype(jnp.float32),
        }
        return state._replace(tables=tables, replay=replay, waiting=waiting), action, metrics

    def complete(self, replay: Row, ready: wt.Ready) -> Row:
        """Puts the returns that are now known into their rows."""
        length, envs = replay.target.shape
        rows = jnp.where(ready.when, ready.what.iteration % length, length)  # out of bounds: dropped
        place = rows, jnp.arange(envs)[:, None]
        return replay._replace(
            target=replay.target.at[place].set(ready.returns, mode="drop"),
            known=replay.known.at[place].set(1.0, mode="drop"),
        )

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        tables = state.tables

        def update():
            batch: Row = rp.sample(state.replay, step + 1, jax.random.uniform(key, (self.batch,)))
            h = jax.vmap(state.embedding)(batch.state)
            taken = jnp.arange(spec.actions)[:, None] == batch.action
            near = tb.recall(tables, h, self.neighbours, self.delta, only=taken)
            slots, weights = (x[batch.action, jnp.arange(self.batch)] for x in (near.slots, near.weights))
            place = batch.action[:, None], slots
            lookup = Lookup(state.embedding, tables.keys[place], tables.values[place])
            loss, gradient = jax.value_and_grad(self.loss)(lookup, weights > 0, batch)
            steps, optimiser_state = optimiser(rate(self, spec, step), self.clip).update(gradient.embedding, state.optimiser)
            embedding = jax.tree.map(jnp.add, state.embedding, steps)
            # The loss is a mean; for the dictionary it is a sum of halves, so that its rate is that of a single example.
            scale = -self.dictionary_rate * jnp.sum(batch.known) / 2
            keys, values = scale * gradient.keys, scale * gradient.values
            return (embedding, optimiser_state, loss), (place, clipped(keys, self.clip * self.dictionary_rate), values)

        def nothing():
            slots = jnp.zeros((self.batch, self.neighbours), jnp.int32)
            change = jnp.zeros((*slots.shape, self.embedding)), jnp.zeros(slots.shape)
            return (state.embedding, state.optimiser, state.loss), ((jnp.zeros((self.batch, 1), jnp.int32), slots), *change)

        # The tables stay outside: a `cond` that gave them back would copy them.
        learnt, (place, keys, values) = when(partial(due, self, spec), step, update, nothing)
        tables = tables._replace(keys=tables.keys.at[place].add(keys), values=tables.values.at[place].add(values))
        state = state._replace(embedding=learnt[0], optimiser=learnt[1], loss=learnt[2], tables=tables)
        return state, {"loss": state.loss}

    def loss(self, lookup: Lookup, there: Bool[Array, "B K"], batch: Row) -> Float[Array, ""]:
        """The mean squared error of the values read, by the returns that are known; differentiable in embedding, keys and values."""
        h = jax.vmap(lookup.embedding)(batch.state)
        kernel = there / (jnp.sum((h[:, None] - lookup.keys) ** 2, axis=-1) + self.delta)
        q = jnp.sum(kernel * lookup.values, axis=-1) / jnp.maximum(jnp.sum(kernel, axis=-1), 1e-12)
        return jnp.sum(batch.known * (batch.target - q) ** 2) / jnp.maximum(jnp.sum(batch.known), 1)

    def values(self, state: State, spec: Spec, observation: Shaped[Array, "E ..."]) -> Float[Array, "E A"]:
        """What each action is held to be worth."""
        h = jax.vmap(state.embedding)(shown(self, spec, observation))
        return tb.read_weighted(state.tables, tb.recall(state.tables, h, self.neighbours, self.delta))

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        return state, greedy(spec, self.values(state, spec, observation), epsilon, key)

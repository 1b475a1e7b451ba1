"""Deep recurrent Q-network (Hausknecht and Stone 2015): an LSTM in the Q-network, and its state beside each transition in replay."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from engram import replay as rp
from engram.agents.shared import (
    Sighted,
    TemporalDifference,
    check_replay,
    due,
    ends,
    epsilon,
    every,
    explore,
    eyes,
    greedy,
    nothing_seen,
    rate,
    shown,
)
from engram.networks import Carried, Recurrent, applied, draw, fresh, in_turn, lived, optimiser, width
from engram.options import Count, Range
from engram.returns import td_target
from engram.schedule import when
from engram.types import Metrics, Spec, TimeStep


class Row(NamedTuple):
    """A row of replay: a step, and the LSTM before it. The next row has what it led to."""

    state: Shaped[Array, "*B S"]
    action: Int[Array, "*B"]
    carried: Carried
    first: Bool[Array, "*B"]
    """whether an episode begins here"""
    reward: Float[Array, "*B"]
    end: Float[Array, "*B"]
    """1 where nothing follows, else 0"""


class State(NamedTuple):
    q: Recurrent
    q_target: Recurrent
    optimiser: PyTree
    replay: Row
    carried: Carried
    """after the last state seen"""
    last: Row
    """whose reward is still to come"""
    loss: Float[Array, ""]
    """the last"""


@dataclass(frozen=True)
class DRQN(Sighted, TemporalDifference):
    """Q-learning with an LSTM, from sequences in replay that begin with the LSTM's state as it was."""

    mixes_games: ClassVar[bool] = False

    batch: Count = 16
    """sequences drawn from replay for one update"""
    learn_every: Count = 2
    """iterations between two updates"""
    hidden: Count = 128
    """width of the layer before the LSTM"""
    lstm: Count = 128
    """width of the LSTM"""
    sequence: Count = 8
    """transitions of a sequence that are learnt from; with 1, no gradient goes back in time"""
    burn_in: Annotated[int, Range(0)] = 0
    """transitions before these that only bring the LSTM's state up to date"""

    @property
    def length(self) -> int:
        return self.burn_in + self.sequence

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        check_replay(self, spec, self.length + 1, "one more than burn_in and sequence together")
        sizes = width(spec), self.hidden, self.lstm, spec.actions
        q = draw(lambda key: Recurrent(sizes, key, vision=eyes(spec, self.convolutions, key)), key)
        nothing, count, carried = jnp.zeros(spec.envs), jnp.zeros(spec.envs, jnp.int32), fresh(spec.envs, self.lstm)
        row = Row(nothing_seen(spec), count, carried, jnp.ones(spec.envs, bool), nothing, nothing)
        return State(
            q=q,
            q_target=q,
            optimiser=optimiser(self.learning_rate, self.clip).init(q),
            replay=rp.empty(row, self.replay, spec.iterations),
            carried=carried,
            last=row,
            loss=jnp.zeros(()),
        )

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        seen = shown(self, spec, timestep.observation)
        row = state.last._replace(reward=timestep.reward, end=ends(self, spec, timestep).astype(jnp.float32))
        replay = rp.store(state.replay, row, step - 1)  # before the first step: the last row, overwritten before it can be drawn
        first = timestep.terminated | timestep.truncated | (step == 0)
        before = lived(state.carried, first)
        after, q = now(state.q, before, seen)
        chance = epsilon(self, spec, step)
        action = explore(q, chance, jax.random.uniform(key, (2, spec.envs)))
        metrics: Metrics = {"epsilon": chance, "value": jnp.mean(jnp.max(q, axis=-1))}
        last = Row(seen, action, before, first, jnp.zeros(spec.envs), jnp.zeros(spec.envs))
        return state._replace(replay=replay, carried=after, last=last), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        def update():
            batch = rp.sequences(state.replay, step, self.length + 1, jax.random.uniform(key, (self.batch,)))
            loss, gradient = in_turn(self.gradient, state.q, state.q_target, batch)
            return *applied(optimiser(rate(self, spec, step), self.clip), gradient, state.q, state.optimiser), loss

        as_before = state.q, state.optimiser, state.loss
        q, optimiser_state, loss = when(lambda step: due(self, spec, step) & (step > self.length), step, update, lambda: as_before)
        q_target = every(self.target_every, step, q, state.q_target)
        return state._replace(q=q, q_target=q_target, optimiser=optimiser_state, loss=loss), {"td_loss": loss}

    def values(self, q: Recurrent, batch: Row) -> Float[Array, "T A"]:
        """The values along sequences after their burn-in. The LSTM begins as it was stored; the burn-in brings it up to date."""
        carried = jax.tree.map(lambda x: x[0], batch.carried)
        if self.burn_in:
            burnt, _ = q(carried, batch.state[: self.burn_in], batch.first[: self.burn_in])
            carried = jax.tree.map(lambda x: lax.stop_gradient(x[-1]), burnt)
        return q(carried, batch.state[self.burn_in :], batch.first[self.burn_in :])[1]

    def gradient(self, q: Recurrent, q_target: Recurrent, batch: Row) -> tuple[Float[Array, ""], Recurrent]:
        """The loss, and its gradient."""
        return jax.value_and_grad(self.loss)(q, batch, self.values(q_target, batch)[1:])

    def loss(self, q: Recurrent, batch: Row, q_next: Float[Array, "T B A"]) -> Float[Array, ""]:
        """The mean squared TD error of what follows the burn-in. Where an episode was cut, the next row shows the beginning of another,
        so that step is left out."""
        learnt = jax.tree.map(lambda x: x[self.burn_in : -1], batch)
        target = td_target(learnt.reward, learnt.end, q_next, self.gamma)
        taken = jnp.take_along_axis(self.values(q, batch)[:-1], learnt.action[..., None], axis=-1)[..., 0]
        is_whole = ~batch.first[self.burn_in + 1 :] | (learnt.end > 0)
        return jnp.sum(is_whole * (target - taken) ** 2) / jnp.maximum(jnp.sum(is_whole), 1)

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        seen = shown(self, spec, observation)
        carried, q = now(state.q, lived(state.carried, first), seen)
        return state._replace(carried=carried), greedy(spec, q, epsilon, key)


def now(q: Recurrent, carried: Carried, state: Shaped[Array, "B S"]) -> tuple[Carried, Float[Array, "B A"]]:
    """What the LSTMs carry after one state, and the values of the actions there."""
    return jax.tree.map(lambda x: x[0], q(carried, state[None], jnp.zeros((1, state.shape[0]), bool)))

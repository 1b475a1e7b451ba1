"""Deep Q-network (Mnih et al. 2015), as the paper's baseline: a ReLU network, a target copy, uniform replay."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from engram import replay as rp
from engram.agents.shared import (
    Bootstrapping,
    blank_replay,
    due,
    epsilon,
    explore,
    greedy,
    nothing_kept,
    q_network,
    rate,
    renewed,
    repeated,
    shown,
    take_in,
)
from engram.networks import MLP, Seeing, choosable, descend, draw, optimiser
from engram.returns import td_loss, td_target
from engram.schedule import when
from engram.types import Metrics, Spec, TimeStep


class State(NamedTuple):
    q: MLP | Seeing
    q_target: MLP | Seeing
    optimiser: PyTree
    replay: rp.Transition
    seen: Shaped[Array, "E S"]
    action: Int[Array, "E"]


class Drawn(NamedTuple):
    """What updates take from replay, and what the target copy says of it."""

    state: Shaped[Array, "B S"]
    action: Int[Array, "B"]
    reward: Float[Array, "B"]
    """gathered over the steps of a target"""
    discount: Float[Array, "B"]
    """of what follows them"""
    end: Float[Array, "B"]
    q_next: Float[Array, "B A"]
    next_state: Shaped[Array, "B S"] | None = None
    """where the network itself chooses in it"""


@dataclass(frozen=True)
class DQN(Bootstrapping):
    """Q-learning with a network, its target copy and experience replay."""

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        q = draw(lambda key: q_network(self, spec, key), key, self.he_weights)
        return State(
            q=q,
            q_target=q,
            optimiser=optimiser(self.learning_rate, self.clip).init(q),
            replay=blank_replay(self, spec),
            seen=nothing_kept(spec),
            action=jnp.zeros(spec.envs, jnp.int32),
        )

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        replay, seen = take_in(self, spec, state.replay, state.seen, state.action, timestep, step)
        q = choosable(spec, jax.vmap(self.acting(state))(seen))
        chance = epsilon(self, spec, step)
        action = explore(q, chance, jax.random.uniform(key, (2, spec.envs)))
        metrics: Metrics = {"epsilon": chance, "value": jnp.mean(jnp.max(q, axis=-1))}
        return state._replace(replay=replay, seen=state.seen if spec.stack else seen, action=action), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        def prepare(lots):
            ahead = rp.look_ahead(state.replay, step, self.multi_step, self.gamma, lots.ravel())
            first, last = rp.at(state.replay, ahead.first), rp.at(state.replay, ahead.last)
            q_next = choosable(spec, jax.vmap(state.q_target)(last.next_state))
            found = Drawn(first.state, first.action, ahead.reward, ahead.discount, last.end, q_next)
            return found._replace(next_state=last.next_state) if self.double else found

        def update(learnt, drawn):
            q, optimiser_state = learnt
            chooser = choosable(spec, jax.vmap(q)(drawn.next_state)) if self.double else None
            target = td_target(drawn.reward, drawn.end, drawn.q_next, drawn.discount, chooser)
            adam = optimiser(rate(self, spec, step), self.clip, self.adam_eps)
            *learnt, loss = descend(adam, self.loss, q, optimiser_state, drawn.state, drawn.action, target)
            return tuple(learnt), loss

        before, nothing = (state.q, state.optimiser), jnp.zeros(())
        learns = partial(due, self, spec)
        learnt, loss = when(learns, step, lambda: repeated(self, prepare, update, before, key, self.batch), lambda: (before, nothing))
        q, optimiser_state = learnt
        q_target = renewed(self, spec, step, q, state.q_target)
        return state._replace(q=q, q_target=q_target, optimiser=optimiser_state), {"td_loss": loss}

    def loss(self, q: MLP | Seeing, state: Shaped[Array, "B S"], action: Int[Array, "B"], target: Float[Array, "B"]) -> Float[Array, ""]:
        """What is made smaller: the TD errors."""
        taken = jnp.take_along_axis(jax.vmap(q)(state), action[:, None], axis=-1)[:, 0]
        return td_loss(target, taken, self.huber)

    def acting(self, state: State) -> MLP | Seeing:
        """The network that chooses."""
        return state.q_target if self.act_by_target else state.q

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        q = jax.vmap(self.acting(state))(shown(self, spec, observation))
        return state, greedy(spec, q, epsilon, key)

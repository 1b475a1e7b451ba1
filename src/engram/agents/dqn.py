"""Deep Q-network (Mnih et al. 2015), as the paper's baseline: a ReLU network, a target copy, uniform replay."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram import replay as rp
from engram.agents.shared import Bootstrapping, due, ends, epsilon, every, explore, rate, see
from engram.networks import MLP, descend, draw, optimiser, width
from engram.returns import td_loss, td_target
from engram.types import Metrics, Spec, TimeStep


class State(NamedTuple):
    q: MLP
    q_target: MLP
    optimiser: PyTree
    replay: rp.Transition
    seen: Float[Array, "E S"]
    action: Int[Array, "E"]


@dataclass(frozen=True)
class DQN(Bootstrapping):
    """Q-learning with a network, its target copy and experience replay."""

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        sizes = (width(spec), *[self.hidden] * self.layers, spec.actions)
        q = draw(lambda key: MLP(sizes, key), key)
        seen, nothing = jnp.zeros((spec.envs, width(spec))), jnp.zeros(spec.envs)
        row = rp.Transition(seen, jnp.zeros(spec.envs, jnp.int32), nothing, seen, nothing, nothing)
        return State(
            q=q,
            q_target=q,
            optimiser=optimiser(self.learning_rate, self.clip).init(q),
            replay=rp.empty(row, self.replay, spec.iterations),
            seen=seen,
            action=row.action,
        )

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        seen = see(self, spec, timestep.observation)
        led_to = see(self, spec, timestep.final)
        end, over = ends(self, spec, timestep), timestep.terminated | timestep.truncated
        row = rp.Transition(state.seen, state.action, timestep.reward, led_to, end.astype(jnp.float32), over.astype(jnp.float32))
        memory = rp.store(state.replay, row, step - 1)  # before the first step: the last row, overwritten before it can be drawn
        q = jax.vmap(state.q)(seen)
        chance = epsilon(self, spec, step)
        action = explore(q, chance, jax.random.uniform(key, (2, spec.envs)))
        metrics: Metrics = {"epsilon": chance, "value": jnp.mean(jnp.max(q, axis=-1))}
        return state._replace(replay=memory, seen=seen, action=action), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        def update():
            lots = jax.random.uniform(key, (self.batch,))
            ahead = rp.look_ahead(state.replay, step, self.multi_step, self.gamma, lots)
            batch, last = rp.at(state.replay, ahead.first), rp.at(state.replay, ahead.last)
            chooser = jax.vmap(state.q)(last.next_state) if self.double else None
            target = td_target(ahead.reward, last.end, jax.vmap(state.q_target)(last.next_state), ahead.discount, chooser)
            adam = optimiser(rate(self, spec, step), self.clip)
            return descend(adam, self.loss, state.q, state.optimiser, batch, target)

        q, optimiser_state, loss = lax.cond(due(self, spec, step), update, lambda: (state.q, state.optimiser, jnp.zeros(())))
        q_target = every(self.target_every, step, q, state.q_target)
        return state._replace(q=q, q_target=q_target, optimiser=optimiser_state), {"td_loss": loss}

    def loss(self, q: MLP, batch: rp.Transition, target: Float[Array, "B"]) -> Float[Array, ""]:
        """What is made smaller: the TD errors."""
        values = jax.vmap(q)(batch.state)
        taken = jnp.take_along_axis(values, batch.action[:, None], axis=-1)[:, 0]
        return td_loss(target, taken, self.huber)

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""]):
        q = jax.vmap(state.q)(see(self, spec, observation))
        return state, jnp.argmax(q, axis=-1)

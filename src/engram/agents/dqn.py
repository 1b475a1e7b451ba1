"""Deep Q-network (Mnih et al. 2015), the paper's baseline."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from engram import networks, replay_buffer
from engram.agents import common, resets
from engram.agents.common import CommonConfig, QLearningConfig, ReplayConfig
from engram.networks import Network, init_params, mask_actions
from engram.optim import gradient_step
from engram.periodic import periodically
from engram.replay_buffer import Transition
from engram.targets import quantile_loss, td_loss
from engram.types import Metrics, Spec, TimeStep


class State(NamedTuple):
    q: Network
    q_target: Network
    opt_state: PyTree
    replay: Transition
    obs: Shaped[Array, "E S"]
    action: Int[Array, "E"]
    loss: Float[Array, ""]
    """of the last update"""


class TDInputs(NamedTuple):
    """A batch from replay, with the target network's values, which no gradient step changes."""

    obs: Shaped[Array, "B S"]
    action: Int[Array, "B"]
    n_step_return: Float[Array, "B"]
    discount: Float[Array, "B"]
    terminal: Float[Array, "B"]
    next_q_target: Float[Array, "B A"]
    next_obs: Shaped[Array, "B S"] | None
    """for double Q-learning"""
    levels: Float[Array, "B N"] | None
    """quantile levels of the values that learn"""
    next_quantiles: Float[Array, "B N A"] | None
    """the target network's samples of the returns after the next actions"""
    mc_return: Float[Array, "B"] | None
    """lower bounds of the values"""


@dataclass(frozen=True)
class DQN(QLearningConfig, ReplayConfig, CommonConfig):
    """Q-learning with a network, a target network and experience replay."""

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        q = self.new_network(spec, key)
        return State(
            q=q,
            q_target=q,
            opt_state=common.adam(self, spec).init(q),  # pyright: ignore[reportArgumentType]
            replay=common.init_replay(self, spec),
            obs=common.last_obs(spec, common.zero_obs(spec)),
            action=jnp.zeros(spec.num_envs, jnp.int32),
            loss=jnp.zeros(()),
        )

    def new_network(self, spec: Spec, key: Key[Array, ""]) -> Network:
        return init_params(partial(common.make_q_network, self, spec), key)

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        replay = common.store_transition(self, spec, state, timestep, step)
        obs = common.network_input(self, spec, timestep.observation)
        q = mask_actions(spec, networks.evaluate(self.acting_network(state), obs))
        epsilon = common.epsilon_schedule(self, spec, step)
        action = common.epsilon_greedy(q, epsilon, jax.random.uniform(key, (2, spec.num_envs)))
        metrics: Metrics = {"epsilon": epsilon, "q_max": jnp.mean(jnp.max(q, axis=-1))}
        state = state._replace(replay=replay, obs=common.last_obs(spec, obs), action=action)
        return state, action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        state = state._replace(replay=common.update_returns(self, spec, step, state.replay))
        before = state.q, state.opt_state
        (q, opt_state), loss = periodically(
            partial(common.should_update, self, spec),
            step,
            lambda: common.run_updates(
                self,
                partial(self.td_inputs, state, spec, step),
                partial(self.update, spec, step),
                before,
                key,
                num_uniforms=self.num_uniforms,
            ),
            lambda: (before, state.loss),
        )
        q_target = common.update_target(self, spec, step, q, state.q_target)
        q, q_target, opt_state = resets.reset_networks(
            self,
            spec,
            step,
            partial(self.new_network, spec, jax.random.fold_in(key, self.gradient_steps)),
            (q, q_target, opt_state),
            common.adam(self, spec).init,
        )
        state = state._replace(q=q, q_target=q_target, opt_state=opt_state, loss=loss)
        return state, {"td_loss": loss}

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        obs = common.network_input(self, spec, observation)
        q = networks.evaluate(self.acting_network(state), obs)
        return state, common.greedy_action(spec, q, epsilon, key)

    def policy_state(self, state: State) -> State:
        unused = {"q": None} if self.act_with_target else {"q_target": None}
        return state._replace(opt_state=None, replay=None, **unused)

    def acting_network(self, state: State) -> Network:
        """The network that selects actions."""
        return state.q_target if self.act_with_target else state.q

    def td_inputs(
        self, state: State, spec: Spec, step: Int[Array, ""], uniforms: Float[Array, "U M"]
    ) -> TDInputs:
        """Samples n-step returns from replay and evaluates the target network after them."""
        replay, drawn = state.replay, uniforms[:, : self.batch_size].ravel()
        index = resets.sample_n_step(self, spec, replay, step, drawn)
        first = replay_buffer.gather(replay, index.first)
        last = replay_buffer.gather(replay, index.last)
        obs, next_obs = common.shift_images(self, spec, uniforms, first.obs, last.next_obs)
        levels = common.draw_levels(self, uniforms)
        next_q, next_quantiles = networks.apply_sequentially(
            evaluate_with_quantiles, state.q_target, next_obs, levels and levels.target
        )
        return TDInputs(
            obs=obs,
            action=first.action,
            n_step_return=index.n_step_return,
            discount=index.discount,
            terminal=last.terminal,
            next_q_target=mask_actions(spec, next_q),
            next_obs=next_obs if self.double_q else None,
            levels=levels and levels.online,
            next_quantiles=next_quantiles,
            mc_return=first.mc_return,
        )

    def update(self, spec: Spec, step, params: tuple[Network, PyTree], batch: TDInputs):
        """One gradient step."""
        q, opt_state = params
        selector_q = None
        if batch.next_obs is not None:
            selector_q = mask_actions(spec, networks.evaluate(q, batch.next_obs))
        target = common.batch_td_target(self, batch, batch.next_q_target, selector_q)
        optimizer = common.adam(self, spec, step)
        data = batch.obs, batch.action, target, batch.levels, batch.mc_return
        sequential = networks.needs_sequential(q)
        q, opt_state, loss = gradient_step(
            optimizer, self.loss_fn, q, opt_state, *data, sequential=sequential
        )
        return (q, opt_state), loss

    def loss_fn(
        self,
        q: Network,
        obs: Shaped[Array, "B S"],
        action: Int[Array, "B"],
        target: Float[Array, "B *N"],
        levels: Float[Array, "B N"] | None = None,
        mc_return: Float[Array, "B"] | None = None,
    ) -> Float[Array, ""]:
        """TD error of the actions taken, or of their quantiles."""
        if levels is None:
            value = jnp.take_along_axis(jax.vmap(q)(obs), action[:, None], axis=-1)[:, 0]
            loss = td_loss(target, value, self.loss)
        else:
            quantiles: Any = evaluate_with_quantiles(q, obs, levels)[1]
            taken = jnp.take_along_axis(quantiles, action[:, None, None], axis=-1)[..., 0]
            value, loss = jnp.mean(taken, axis=-1), quantile_loss(target, taken, levels)
        return common.with_lower_bound(self, loss, value, mc_return)


def evaluate_with_quantiles(
    q: Network, obs: Shaped[Array, "B S"], levels: Float[Array, "B N"] | None
) -> tuple[Float[Array, "B A"], Float[Array, "B N A"] | None]:
    """Values of a batch and, if levels are given, their quantiles."""
    if levels is None:
        return jax.vmap(q)(obs), None
    head: Any = networks.head(q)
    features = networks.encode_batch(q, obs)
    return jax.vmap(head)(features), jax.vmap(head.quantiles)(features, levels)

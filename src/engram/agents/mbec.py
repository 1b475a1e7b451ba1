"""Model-based episodic control: plans by the trajectory model, values by memory (Section 3.3)."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from engram import replay_buffer
from engram.agents import common
from engram.agents.common import CommonConfig, ReplayConfig
from engram.encoders import is_image
from engram.episodic import control, model_training
from engram.episodic.control import EpisodicControlConfig, EpisodicState, StepResult
from engram.episodic.trajectory_model import state_action
from engram.errors import EngramError
from engram.networks import mask_actions, obs_size
from engram.periodic import periodically
from engram.replay_buffer import Transition
from engram.types import Metrics, Spec, TimeStep


class State(NamedTuple):
    episodic: EpisodicState
    replay: Transition
    obs: Float[Array, "E S"]
    action: Int[Array, "E"]
    reward_loss: Float[Array, ""]
    """of the reward model in the last update"""


@dataclass(frozen=True)
class MBEC(EpisodicControlConfig, ReplayConfig, CommonConfig):
    """Model-based episodic control: acts by its memory of trajectories alone."""

    def __post_init__(self):
        super().__post_init__()
        common.check_neighbours(self, "num_neighbours", "num_write_neighbours")

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        if is_image(spec):
            raise EngramError("MBEC has no encoder for images: use mbec++ on this task.")
        episodic = control.init(self, spec, obs_size(spec), key)
        return State(
            episodic=episodic,
            replay=common.init_replay(self, spec, tau=episodic.tau, next_tau=episodic.tau),
            obs=common.zero_obs(spec),
            action=jnp.zeros(spec.num_envs, jnp.int32),
            reward_loss=jnp.zeros(()),
        )

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        uniforms = control.draw_uniforms(key, spec.num_envs)
        episodic = state.episodic
        taus = {"tau": episodic.prev_tau, "next_tau": episodic.tau}
        replay = common.store_transition(self, spec, state, timestep, step, **taus)
        obs = common.network_input(self, spec, timestep.observation)
        terminal = common.is_terminal(self, spec, timestep)
        result = StepResult(obs, timestep.reward, timestep.done, terminal)
        episodic, decision = control.episodic_step(episodic, self, spec, result, step, uniforms)
        q = mask_actions(spec, decision.q)
        epsilon = common.epsilon_schedule(self, spec, step)
        action = common.epsilon_greedy(q, epsilon, uniforms.explore)
        episodic = control.append_action(episodic, decision, action, timestep.done)
        metrics: Metrics = {
            "epsilon": epsilon,
            "q_max": jnp.mean(jnp.max(q, axis=-1)),
            "memory_size": episodic.memory.size.astype(jnp.float32),
        }
        state = state._replace(episodic=episodic, replay=replay, obs=obs, action=action)
        return state, action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        episodic = state.episodic

        def update():
            uniforms = jax.random.uniform(key, (self.batch_size,))
            batch = replay_buffer.sample(state.replay, step, uniforms)
            pairs = state_action(batch.obs, batch.action, spec.num_actions)
            return model_training.train_reward_model(
                self, episodic.reward_model, episodic.reward_opt_state, pairs, batch.reward
            )

        reward_model, opt_state, reward_loss = periodically(
            partial(common.should_update, self, spec),
            step,
            update,
            lambda: (episodic.reward_model, episodic.reward_opt_state, state.reward_loss),
        )
        episodic = episodic._replace(reward_model=reward_model, reward_opt_state=opt_state)
        episodic = model_training.train_trajectory_model(
            episodic, self, spec, state.replay, step, jax.random.fold_in(key, 1)
        )
        metrics: Metrics = {
            "reward_loss": reward_loss,
            "trajectory_loss": episodic.trajectory_loss,
        }
        return state._replace(episodic=episodic, reward_loss=reward_loss), metrics

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        obs = common.network_input(self, spec, observation)
        plan, q, _ = control.plan_values(state.episodic, self, spec, obs, episode_start)
        action = common.greedy_action(spec, q, epsilon, key)
        episodic = state.episodic._replace(tau=control.select(plan, action))
        return state._replace(episodic=episodic), action

    def policy_state(self, state: State) -> State:
        return state._replace(replay=None, episodic=control.policy_state(state.episodic))

"""Model-based episodic control: plans by the trajectory model, values by memory (Section 3.3)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped
from optax import GradientTransformation

from engram import replay_buffer
from engram.agents import common
from engram.agents.common import CommonConfig, ReplayConfig
from engram.config import Count, Positive, Probability, WholeNumber
from engram.encoders import is_image
from engram.episodic import control, model_training, reencoding
from engram.episodic.control import (
    EpisodicControlConfig,
    EpisodicState,
    StepResult,
    StorageRules,
)
from engram.episodic.image_encoder import (
    ImageEncoder,
    encoder_loss,
    init_image_encoder,
    num_features,
)
from engram.episodic.memory import Memory
from engram.episodic.reencoding import InputEncoder
from engram.episodic.trajectory_model import state_action
from engram.errors import EngramError
from engram.networks import mask_actions
from engram.optim import gradient_step, make_optimizer
from engram.periodic import periodically
from engram.replay_buffer import Transition
from engram.types import Metrics, Spec, TimeStep


class State(NamedTuple):
    episodic: EpisodicState
    replay: Transition
    obs: Shaped[Array, "E S"]
    action: Int[Array, "E"]
    reward_loss: Float[Array, ""]
    """of the reward model in the last update"""
    inputs: InputEncoder | None = None
    """makes the trajectory model's inputs, if keys are re-encoded"""
    encoder: ImageEncoder | None = None
    """the encoder of images as it learns; `inputs` has the copy that makes keys"""
    encoder_opt_state: PyTree = None


@dataclass(frozen=True)
class MBEC(EpisodicControlConfig, ReplayConfig, CommonConfig):
    """Model-based episodic control: acts by its memory of trajectories alone."""

    # Defaults that differ from the paper's (docs/notebook).
    gamma: Probability = 1.0
    truncation_is_terminal: bool | None = False
    epsilon_decay: Positive = 400.0
    num_neighbours: Count = 5
    chunk: Count = 1
    memory_size: Count = 5_000
    p_refine: Probability = 1.0
    trajectory_loss: Literal["recall", "prediction", "none"] = "none"

    rewards: Literal["memory", "model"] = "memory"
    """rewards in Q: stored with the returns in memory, or predicted by the reward model"""
    n_step: Count | None = 10
    """rewards of a stored return before it bootstraps; all until the episode's end if None"""
    refine_batch: WholeNumber = 8
    """past steps from replay at which the memory is refined in every update"""
    reencode: bool = True
    """make keys by a copy of the trajectory model, and compute all keys anew when it is renewed"""
    weigh_inputs: bool = True
    """when keys are re-encoded, weigh the trajectory model's inputs by their autocorrelation"""

    def __post_init__(self):
        super().__post_init__()
        common.check_neighbours(self, "num_neighbours", "num_write_neighbours")

    @property
    def rules(self) -> StorageRules:
        """What is stored in the memory, and when."""
        return StorageRules(self.rewards == "memory", self.n_step, self.reencode)

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        if spec.frame_stack:
            raise EngramError("MBEC cannot store stacks of frames: use mbec++ on this task.")
        if is_image(spec) and not (self.reencode and self.rewards == "memory"):
            raise EngramError(
                "On images MBEC needs reencode and rewards from memory, since the encoder learns: "
                "leave these options at their defaults."
            )
        encoder = init_image_encoder(spec, jax.random.fold_in(key, 1))
        episodic = control.init(self, spec, num_features(spec, encoder), key, self.rules)
        return State(
            episodic=episodic,
            replay=common.init_replay(self, spec, tau=episodic.tau, next_tau=episodic.tau),
            obs=common.zero_obs(spec),
            action=jnp.zeros(spec.num_envs, jnp.int32),
            reward_loss=jnp.zeros(()),
            inputs=reencoding.init_inputs(spec, encoder) if self.reencode else None,
            encoder=encoder,
            encoder_opt_state=self.reward_optimizer().init(encoder),  # pyright: ignore
        )

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        uniforms = control.draw_uniforms(key, spec.num_envs)
        episodic = state.episodic
        taus = {"tau": episodic.prev_tau, "next_tau": episodic.tau}
        replay = common.store_transition(self, spec, state, timestep, step, **taus)
        obs = common.network_input(self, spec, timestep.observation)
        terminal = common.is_terminal(self, spec, timestep)
        result = StepResult(model_input(state, obs), timestep.reward, timestep.done, terminal)
        episodic, decision = control.episodic_step(
            episodic, self, spec, result, step, uniforms, self.rules
        )
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
        if self.rewards == "model" or state.encoder is not None:
            state = self.train_on_rewards(state, spec, step, key)
        episodic = model_training.train_trajectory_model(
            state.episodic,
            self,
            spec,
            state.replay,
            step,
            jax.random.fold_in(key, 1),
            partial(model_input, state),
        )
        state = state._replace(episodic=episodic)
        if self.reencode:
            state = self.reencode_keys(state, spec, step)
        if self.refine_batch:
            state = self.refine_past(state, spec, step, jax.random.fold_in(key, 2))
        metrics: Metrics = {
            "reward_loss": state.reward_loss,
            "trajectory_loss": episodic.trajectory_loss,
        }
        return state, metrics

    def reward_optimizer(self) -> GradientTransformation:
        return make_optimizer(self.reward_lr, control.MAX_GRAD_NORM)

    def train_on_rewards(self, state: State, spec: Spec, step, key: Key[Array, ""]) -> State:
        """One gradient step on the reward model or, with images, on the encoder."""
        episodic = state.episodic

        def update():
            uniforms = jax.random.uniform(key, (self.batch_size,))
            batch = replay_buffer.sample(state.replay, step, uniforms)
            if state.encoder is not None:
                data = batch.obs, batch.action, batch.reward
                encoder, opt_state, loss = gradient_step(
                    self.reward_optimizer(),
                    encoder_loss,
                    state.encoder,
                    state.encoder_opt_state,
                    *data,
                )
                return state._replace(
                    encoder=encoder, encoder_opt_state=opt_state, reward_loss=loss
                )
            pairs = state_action(model_input(state, batch.obs), batch.action, spec.num_actions)
            model, opt_state, loss = model_training.train_reward_model(
                self, episodic.reward_model, episodic.reward_opt_state, pairs, batch.reward
            )
            trained = episodic._replace(reward_model=model, reward_opt_state=opt_state)
            return state._replace(episodic=trained, reward_loss=loss)

        is_due = partial(common.should_update, self, spec)
        return without_replay(is_due, step, update, state)

    def reencode_keys(self, state: State, spec: Spec, step: Int[Array, ""]) -> State:
        """Renews the encoder of keys and all keys, if that is due."""
        due = np.array(reencoding.schedule(spec.num_iterations), np.int32)

        def renew():
            renewed = reencoding.reencode(
                *(state.episodic, state.encoder, state.replay, state.obs, state.action),
                spec,
                step,
                self.weigh_inputs,
            )
            replay = state.replay._replace(tau=renewed.tau, next_tau=renewed.next_tau)
            return state._replace(episodic=renewed.episodic, inputs=renewed.inputs, replay=replay)

        return periodically(lambda step: jnp.any(step == due), step, renew, lambda: state)

    def refine_past(self, state: State, spec: Spec, step, key: Key[Array, ""]) -> State:
        """Refines the memory at steps drawn from replay."""

        def refine():
            uniforms = jax.random.uniform(key, (1 + self.refine_batch,))
            batch = replay_buffer.sample(state.replay, step, uniforms[1:])
            reached = StepResult(
                model_input(state, batch.next_obs), batch.reward, batch.done > 0, batch.terminal > 0
            )
            use_max = control.draw_read_rule(self.p_read, uniforms[0])
            episodic = control.refine_past(
                state.episodic, self, spec, reached, batch.next_tau, self.rules, use_max
            )
            return state._replace(episodic=episodic)

        is_due = partial(common.should_update, self, spec)
        return without_replay(is_due, step, refine, state)

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        obs = common.network_input(self, spec, observation)
        plan, q, _ = control.plan_values(
            state.episodic, self, spec, model_input(state, obs), episode_start, self.rules
        )
        action = common.greedy_action(spec, q, epsilon, key)
        episodic = state.episodic._replace(tau=control.select(plan, action))
        return state._replace(episodic=episodic), action

    def memory(self, state: State) -> Memory:
        return state.episodic.memory

    def policy_state(self, state: State) -> State:
        episodic = control.policy_state(state.episodic)
        return state._replace(replay=None, episodic=episodic, encoder=None, encoder_opt_state=None)


def model_input(state: State, obs: Shaped[Array, "*B S"]) -> Float[Array, "*B F"]:
    """What the trajectory model receives of observations."""
    return obs if state.inputs is None else state.inputs(obs)


def without_replay(
    is_due: Callable[..., Any], step: Int[Array, ""], update: Callable[[], State], state: State
) -> State:
    """`update()` if it is due; replay, which it does not change, is not passed through."""
    updated = periodically(
        is_due,
        step,
        lambda: update()._replace(replay=None),
        lambda: state._replace(replay=None),
    )
    return updated._replace(replay=state.replay)

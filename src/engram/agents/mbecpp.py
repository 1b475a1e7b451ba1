"""MBEC++: episodic control joined to a DQN by a learned weight (Section 3.4, Algorithm 1)."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from engram import networks, replay_buffer
from engram.agents import common, resets
from engram.agents.common import CommonConfig, QLearningConfig, ReplayConfig
from engram.config import Count, Positive, Probability
from engram.episodic import consolidation, control, features, model_training
from engram.episodic.consolidation import Params
from engram.episodic.control import EpisodicControlConfig, EpisodicState, StepResult
from engram.episodic.features import FeatureProjection
from engram.episodic.memory import Memory, mean_value
from engram.episodic.trajectory_model import RewardModel, state_action
from engram.networks import NormalizeObs, mask_actions, needs_sequential
from engram.optim import gradient_step
from engram.periodic import periodically
from engram.replay_buffer import Transition
from engram.targets import Loss, quantile_loss, td_loss
from engram.types import Metrics, Spec, TimeStep


class State(NamedTuple):
    params: Params
    target_params: Params
    opt_state: PyTree
    episodic: EpisodicState
    replay: Transition
    obs: Shaped[Array, "E S"]
    action: Int[Array, "E"]
    features: Float[Array, "E G"] | None
    """of the last observations, if they are images"""
    projection: FeatureProjection | None
    losses: tuple[Float[Array, ""], Float[Array, ""]]
    """TD loss and loss of the reward model in the last update"""


class TDInputs(NamedTuple):
    """A batch from replay, with values of memory and target networks that no update changes."""

    obs: Shaped[Array, "B S"]
    action: Int[Array, "B"]
    reward: Float[Array, "B"]
    state_action: Float[Array, "B X"]
    tau: Float[Array, "B H"]
    memory_value: Float[Array, "B"]
    """gamma times the memory's value of tau after the action, minus the baseline"""
    n_step_return: Float[Array, "B"]
    discount: Float[Array, "B"]
    terminal: Float[Array, "B"]
    next_model_input: Float[Array, "B G"]
    """of the trajectory model, after the n steps"""
    next_tau: Float[Array, "B H"]
    next_memory_values: Float[Array, "B A"]
    """gamma times the memory's values after each next action, minus the baseline"""
    next_q_target: Float[Array, "B A"]
    next_beta_target: Float[Array, "B"]
    next_obs: Shaped[Array, "B S"] | None
    """for double Q-learning"""
    levels: Float[Array, "B N"] | None
    """quantile levels of the semantic values that learn"""
    next_quantiles: Float[Array, "B N A"] | None
    """the target network's samples of the semantic returns after the next actions"""
    mc_return: Float[Array, "B"] | None
    """lower bounds of the joint values"""


class Learned(NamedTuple):
    """What gradient steps change."""

    params: Params
    opt_state: PyTree
    reward_model: RewardModel
    reward_opt_state: PyTree


@dataclass(frozen=True)
class MBECpp(EpisodicControlConfig, QLearningConfig, ReplayConfig, CommonConfig):
    """Model-based episodic control joined to a DQN by a learned weight."""

    # Defaults that were best on noisy classic control; the preset `paper` has the paper's.
    hidden_size: Count = 128
    normalize_obs: NormalizeObs = "small"
    n_step: Count = 5
    loss: Loss = "huber"
    batch_size: Count = 64
    learning_rate: Positive = 2e-3
    anneal_lr: bool = True
    epsilon_end: Probability = 0.0
    trajectory_dim: Count = 8
    trajectory_lr: Positive = 1e-5

    fixed_beta: Probability | None = None
    """constant weight of the episodic value (ablation); learned from tau if None"""
    q_uses_tau: bool = True
    """give tau to the Q-network, with the observation"""
    center_memory_values: bool = True
    """subtract the mean stored value from the memory's values, so that they rank actions only"""
    select_with_q_only: bool = False
    """in TD targets select the next action with the Q-network alone; memory helps to value it"""

    def __post_init__(self):
        super().__post_init__()
        common.check_neighbours(self, "num_neighbours", "num_write_neighbours")

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        episodic_key, params_key = jax.random.split(key)
        params = self.new_params(spec, params_key)
        projection = features.init(jax.random.fold_in(params_key, 1), params.q)
        first_features = features.zeros(projection, spec.num_envs)
        episodic = control.init(self, spec, features.num_features(spec), episodic_key)
        return State(
            params=params,
            target_params=params,
            opt_state=common.adam(self, spec).init(params),  # pyright: ignore[reportArgumentType]
            episodic=episodic,
            replay=common.init_replay(
                self,
                spec,
                tau=episodic.tau,
                next_tau=episodic.tau,
                features=first_features,
                next_features=first_features,
            ),
            obs=common.last_obs(spec, common.zero_obs(spec)),
            action=jnp.zeros(spec.num_envs, jnp.int32),
            features=first_features,
            projection=projection,
            losses=(jnp.zeros(()), jnp.zeros(())),
        )

    def new_params(self, spec: Spec, key: Key[Array, ""]) -> Params:
        return consolidation.init(self, partial(common.make_q_network, self, spec), key)

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        """Algorithm 1, lines 5 to 9: store, plan, refine and write the memory, choose."""
        uniforms = control.draw_uniforms(key, spec.num_envs)
        params, episodic = self.acting_params(state), state.episodic
        obs = timestep.observation
        if state.projection is not None:
            obs = common.obs_to_evaluate(self, spec, timestep)
        encoded = consolidation.encode(params, common.network_input(self, spec, obs))
        step_features = features.project_step(state.projection, encoded, spec.num_envs)
        replay = common.store_transition(
            self,
            spec,
            state,
            timestep,
            step,
            tau=episodic.prev_tau,
            next_tau=episodic.tau,
            features=state.features,
            next_features=step_features.reached,
        )
        terminal = common.is_terminal(self, spec, timestep)
        result = StepResult(step_features.model_input, timestep.reward, timestep.done, terminal)
        episodic, decision = control.episodic_step(episodic, self, spec, result, step, uniforms)

        beta = consolidation.beta(self, params, decision.tau.h)
        q_episodic = beta[:, None] * (decision.q - self.baseline(state.episodic))
        q_semantic = consolidation.q_values(self, params, encoded[: spec.num_envs], decision.tau.h)
        q = mask_actions(spec, q_episodic + q_semantic)  # Eq. 7
        epsilon = common.epsilon_schedule(self, spec, step)
        action = common.epsilon_greedy(q, epsilon, uniforms.explore)
        obs = common.network_input(self, spec, timestep.observation)
        state = state._replace(
            episodic=control.append_action(episodic, decision, action, timestep.done),
            replay=replay,
            obs=common.last_obs(spec, obs),
            action=action,
            features=step_features.current,
            projection=step_features.projection,
        )
        greedy = jnp.argmax(q, axis=-1)
        metrics: Metrics = {
            "episodic_agreement": agreement(mask_actions(spec, q_episodic), greedy),
            "semantic_agreement": agreement(mask_actions(spec, q_semantic), greedy),
            "beta": jnp.mean(beta),
            "memory_size": episodic.memory.size.astype(jnp.float32),
            "epsilon": epsilon,
            "q_max": jnp.mean(jnp.max(q, axis=-1)),
        }
        if step_features.current is not None and spec.num_envs > 1:
            metrics["feature_std"] = jnp.mean(jnp.std(step_features.current, axis=0))
        return state, action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        """Algorithm 1, lines 10 to 16: TD errors, reward model, trajectory model."""
        state = state._replace(replay=common.update_returns(self, spec, step, state.replay))
        episodic = state.episodic
        before = Learned(
            state.params, state.opt_state, episodic.reward_model, episodic.reward_opt_state
        )
        learned, losses = periodically(
            partial(common.should_update, self, spec),
            step,
            lambda: common.run_updates(
                self,
                partial(self.td_inputs, state, spec, step),
                partial(self.update, episodic, spec, step),
                before,
                key,
                num_uniforms=1 + self.num_uniforms,
            ),
            lambda: (before, state.losses),
        )
        episodic = episodic._replace(
            reward_model=learned.reward_model, reward_opt_state=learned.reward_opt_state
        )
        # Gradient steps use the key itself or its splits 0, 1, ...
        trajectory_key = jax.random.fold_in(key, self.gradient_steps)
        episodic = model_training.train_trajectory_model(
            episodic, self, spec, state.replay, step, trajectory_key
        )
        params = learned.params
        target_params = common.update_target(self, spec, step, params, state.target_params)
        q, q_target, opt_state = resets.reset_networks(
            self,
            spec,
            step,
            lambda: self.new_params(spec, jax.random.fold_in(key, self.gradient_steps + 1)).q,
            (params.q, target_params.q, learned.opt_state),
            lambda q: common.adam(self, spec).init(params._replace(q=q)),  # pyright: ignore
        )
        state = state._replace(
            params=params._replace(q=q),
            target_params=target_params._replace(q=q_target),
            opt_state=opt_state,
            episodic=episodic,
            losses=losses,
        )
        td_loss, reward_loss = losses
        metrics: Metrics = {"td_loss": td_loss, "reward_loss": reward_loss}
        return state, metrics | {"trajectory_loss": episodic.trajectory_loss}

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        params, episodic = self.acting_params(state), state.episodic
        encoded = consolidation.encode(params, common.network_input(self, spec, observation))
        model_input = features.project(state.projection, encoded)
        plan, q_mbec, tau = control.plan_values(episodic, self, spec, model_input, episode_start)
        beta = consolidation.beta(self, params, tau.h)
        q_episodic = beta[:, None] * (q_mbec - self.baseline(episodic))
        q = q_episodic + consolidation.q_values(self, params, encoded, tau.h)
        action = common.greedy_action(spec, q, epsilon, key)
        return state._replace(episodic=episodic._replace(tau=control.select(plan, action))), action

    def memory(self, state: State) -> Memory:
        return state.episodic.memory

    def policy_state(self, state: State) -> State:
        unused = {"params": None} if self.act_with_target else {"target_params": None}
        episodic = control.policy_state(state.episodic)
        return state._replace(opt_state=None, replay=None, episodic=episodic, **unused)

    def acting_params(self, state: State) -> Params:
        """The networks that select actions."""
        return state.target_params if self.act_with_target else state.params

    def baseline(self, episodic: EpisodicState) -> Float[Array, ""] | float:
        """What is subtracted from the memory's values."""
        return mean_value(episodic.memory) if self.center_memory_values else 0.0

    # TD learning

    def td_inputs(
        self, state: State, spec: Spec, step: Int[Array, ""], uniforms: Float[Array, "U 1+M"]
    ) -> TDInputs:
        """Batches of U gradient steps; one search of the memory serves all of them."""
        replay, episodic, params = state.replay, state.episodic, state.target_params
        drawn = uniforms[:, 1 : 1 + self.batch_size].ravel()
        levels = common.draw_levels(self, uniforms[:, 1:])
        index = resets.sample_n_step(self, spec, replay, step, drawn)
        first = replay_buffer.gather(replay, index.first)
        last = replay_buffer.gather(replay, index.last)
        obs, next_obs = common.shift_images(self, spec, uniforms, first.obs, last.next_obs)
        next_input, next_tau = last.next_model_input, last.next_tau
        pairs = state_action(first.model_input, first.action, spec.num_actions)
        reached = jax.vmap(episodic.trajectory_model)(first.tau, pairs)
        planned = control.predict_trajectories(episodic, next_input, next_tau, spec.num_actions)
        use_max = control.draw_read_rule(self.p_read, uniforms[:, 0])
        value, next_values = control.read_batches(episodic, self, reached.h, planned.h, use_max)
        encoded = consolidation.encode(params, next_obs)
        next_quantiles = None
        if levels is not None:
            next_quantiles = consolidation.quantiles(
                self, params, encoded, next_tau.h, levels.target
            )
        return TDInputs(
            obs=obs,
            action=first.action,
            reward=first.reward,
            state_action=pairs,
            tau=first.tau.h,
            memory_value=self.gamma * value - self.baseline(episodic),
            n_step_return=index.n_step_return,
            discount=index.discount,
            terminal=last.terminal,
            next_model_input=next_input,
            next_tau=next_tau.h,
            next_memory_values=self.gamma * next_values - self.baseline(episodic),
            next_q_target=consolidation.q_values(self, params, encoded, next_tau.h),
            next_beta_target=consolidation.beta(self, params, next_tau.h),
            next_obs=next_obs if self.double_q else None,
            levels=levels and levels.online,
            next_quantiles=next_quantiles,
            mc_return=first.mc_return,
        )

    def update(
        self,
        episodic: EpisodicState,
        spec: Spec,
        step: Int[Array, ""],
        learned: Learned,
        batch: TDInputs,
    ) -> tuple[Learned, tuple[Float[Array, ""], Float[Array, ""]]]:
        """One gradient step on the TD error and one on the reward model."""
        params, opt_state, reward_model, reward_opt_state = learned
        episodic = episodic._replace(reward_model=reward_model)
        q_mbec = jax.vmap(reward_model)(batch.state_action) + batch.memory_value  # Eq. 6
        target = self.td_target(params, episodic, spec, batch)
        params, opt_state, loss = gradient_step(
            common.adam(self, spec, step),
            self.loss_fn,
            params,
            opt_state,
            *(batch, q_mbec, target),
            sequential=needs_sequential(params.q),
        )
        reward_model, reward_opt_state, reward_loss = model_training.train_reward_model(
            self, reward_model, reward_opt_state, batch.state_action, batch.reward
        )
        return Learned(params, opt_state, reward_model, reward_opt_state), (loss, reward_loss)

    def td_target(
        self, params: Params, episodic: EpisodicState, spec: Spec, batch: TDInputs
    ) -> Float[Array, "B *N"]:
        """TD target of the joint value (Eq. 6 to 8)."""
        next_reward = control.predict_rewards(episodic, batch.next_model_input, spec.num_actions)
        next_q_mbec = next_reward + batch.next_memory_values

        def joint(q_semantic, beta):
            return mask_actions(spec, next_q_mbec * beta[:, None] + q_semantic)

        selector = None
        selector_q = batch.next_q_target
        if batch.next_obs is not None:
            encoded = consolidation.encode(params, batch.next_obs)
            selector_q = consolidation.q_values(self, params, encoded, batch.next_tau)
            selector = joint(selector_q, consolidation.beta(self, params, batch.next_tau))
        if self.select_with_q_only:
            selector = mask_actions(spec, selector_q)
        next_q = joint(batch.next_q_target, batch.next_beta_target)
        if batch.next_quantiles is not None:
            episodic_part = next_q_mbec * batch.next_beta_target[:, None]
            shifted = batch.next_quantiles + episodic_part[:, None]
            batch = batch._replace(next_quantiles=shifted)
        return common.batch_td_target(self, batch, next_q, selector)

    def loss_fn(
        self,
        params: Params,
        batch: TDInputs,
        q_mbec: Float[Array, "B"],
        target: Float[Array, "B *N"],
    ) -> Float[Array, ""]:
        """TD error of the joint value (Eq. 7 and 8); no gradient enters memory or models.

        The episodic value shifts all quantiles of the semantic one.
        """
        encoded = networks.encode_batch(params.q, batch.obs)
        episodic_part = consolidation.beta(self, params, batch.tau) * q_mbec
        if batch.levels is None:
            q = consolidation.q_values(self, params, encoded, batch.tau)
            value = episodic_part + jnp.take_along_axis(q, batch.action[:, None], axis=-1)[:, 0]
            loss = td_loss(target, value, self.loss)
        else:
            quantiles = consolidation.quantiles(self, params, encoded, batch.tau, batch.levels)
            taken = jnp.take_along_axis(quantiles, batch.action[:, None, None], axis=-1)[..., 0]
            joint = episodic_part[:, None] + taken
            value, loss = jnp.mean(joint, axis=-1), quantile_loss(target, joint, batch.levels)
        return common.with_lower_bound(self, loss, value, batch.mc_return)


def agreement(q: Float[Array, "E A"], greedy: Int[Array, "E"]) -> Float[Array, ""]:
    """How often the greedy action of `q` is the given one."""
    return jnp.mean(jnp.argmax(q, axis=-1) == greedy)

"""Model-free episodic control (Blundell et al. 2016): the best return after state and action."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram import replay_buffer
from engram.agents import common
from engram.agents.common import CommonConfig
from engram.config import Count, Positive, Probability
from engram.encoders import channels_first, to_float
from engram.episodic import accumulator, dnd
from engram.episodic.accumulator import PendingReturns
from engram.episodic.memory import Memory
from engram.errors import EngramError
from engram.networks import flatten_obs, mask_actions, obs_size
from engram.optim import gradient_step, make_optimizer
from engram.periodic import periodically
from engram.types import Metrics, Spec, TimeStep
from engram.vae import VAE, encode_key, vae_loss


class VAEState(NamedTuple):
    """A variational auto-encoder and the images it learns from."""

    vae: VAE
    opt_state: PyTree
    images: Array
    loss: Float[Array, ""]


class State(NamedTuple):
    dnd: Memory
    projection: Float[Array, "S D"] | None
    vae: VAEState | None
    pending: PendingReturns


@dataclass(frozen=True)
class MFEC(CommonConfig):
    """Acts by the best return that ever followed the nearest states."""

    supports_action_mask: ClassVar[bool] = True

    epsilon_end: Probability = 0.01
    """final probability of a random action; it starts at 1"""
    epsilon_decay: Positive = 500.0
    """environment steps in which epsilon's distance to its final value falls to 1/e"""
    num_neighbours: Count = 11
    """K, neighbours that value a new state"""
    memory_size: Count = 1_000_000
    """slots per action"""
    key_size: Count = 64
    """size of a state's key"""
    key_encoder: Literal["projection", "vae"] = "projection"
    """keys by a fixed random projection, or by a variational auto-encoder of images"""
    vae_steps: Count = 10_000
    """environment steps of random actions in which the VAE learns; the memory starts after them"""
    vae_buffer_size: Count = 5_000
    """latest images that the VAE learns from"""
    vae_lr: Positive = 1e-3
    """learning rate of the VAE"""
    vae_batch_size: Count = 32
    """images per gradient step of the VAE"""

    def __post_init__(self):
        super().__post_init__()
        common.check_neighbours(self, "num_neighbours")

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        projection, vae, key_size = None, None, self.key_size
        if self.key_encoder == "vae":
            vae = self.init_vae(key, spec)
        else:
            projection = random_projection(jax.random.normal(key, (obs_size(spec), self.key_size)))
            key_size = projection.shape[1]
        capacity, _ = dnd.capacity(self.memory_size, spec)
        action = jnp.zeros(spec.num_envs, jnp.int32)
        entry = dnd.Entry(jnp.zeros((spec.num_envs, key_size)), action)
        return State(
            dnd=dnd.init_dnd(spec.num_actions, capacity, key_size),
            projection=projection,
            vae=vae,
            pending=accumulator.init_pending(
                entry, accumulator.capacity_for(spec.max_episode_steps)
            ),
        )

    def init_vae(self, key: Key[Array, ""], spec: Spec) -> VAEState:
        """A new auto-encoder."""
        if len(spec.shape) not in (2, 3, 4):
            raise EngramError(
                "A VAE needs images, arrays of two to four axes, but an observation has shape "
                f"{spec.shape}: use key_encoder='projection'."
            )
        if self.vae_steps >= spec.num_iterations * spec.num_envs:
            raise EngramError(
                f"The run ends before vae_steps ({self.vae_steps}): lower it or raise steps."
            )
        shape, _ = channels_first(spec.shape)
        vae = VAE(shape, self.key_size, key)
        image = jnp.zeros((spec.num_envs, *spec.shape), spec.dtype)
        images = replay_buffer.init_buffer(image, self.vae_buffer_size, spec.num_iterations)
        opt_state = make_optimizer(self.vae_lr, common.MAX_GRAD_NORM).init(vae)  # pyright: ignore
        return VAEState(vae, opt_state, images, jnp.zeros(()))

    def step(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key):
        num_envs = spec.num_envs
        keys = self.keys(state, spec, common.obs_to_evaluate(self, spec, timestep))
        pending = accumulator.add_reward(state.pending, timestep.reward, self.gamma)
        closed = accumulator.peek(pending, dnd.WRITES_PER_STEP)
        writes = dnd.make_writes(closed, spec.num_actions)
        queries = jnp.concatenate([keys, writes.key])
        near = dnd.lookup(state.dnd, queries, self.num_neighbours)
        near_read, near_written = dnd.split(near, (len(keys), len(writes.key)))
        memory, q = dnd.read_before_write(state.dnd, dnd.read_mean(state.dnd, near_read))
        q = mask_actions(spec, q)
        _, eviction = dnd.capacity(self.memory_size, spec)
        memory = dnd.write(memory, near_written, writes, step, eviction)

        q, reached_q = q[:num_envs], q[-num_envs:]
        start = self.vae_steps // num_envs if self.key_encoder == "vae" else 0
        has_started = step >= start
        epsilon = jnp.where(has_started, common.epsilon_schedule(self, spec, step - start), 1.0)
        action = common.epsilon_greedy(q, epsilon, jax.random.uniform(key, (2, num_envs)))
        terminal = common.is_terminal(self, spec, timestep)
        bootstrap = jnp.where(terminal, 0.0, jnp.max(reached_q, axis=-1))
        pending = accumulator.drop(pending, jnp.sum(closed.mask, axis=-1))
        pending = accumulator.close(pending, timestep.done, bootstrap)
        pending = accumulator.append(pending, dnd.Entry(keys[:num_envs], action), has_started)
        vae = state.vae
        if vae is not None:
            images = replay_buffer.add(vae.images, timestep.observation, step)
            vae = vae._replace(images=images)
        metrics: Metrics = {
            "epsilon": epsilon,
            "q_max": jnp.mean(jnp.max(q, axis=-1)),
            "memory_size": jnp.sum(memory.size).astype(jnp.float32),
        }
        return State(memory, state.projection, vae, pending), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        if state.vae is None:
            return state, {}
        vae, opt_state, images, loss = state.vae

        def update():
            sample_key, noise_key = jax.random.split(key)
            uniforms = jax.random.uniform(sample_key, (self.vae_batch_size,))
            batch = to_chw(spec, replay_buffer.sample(images, step + 1, uniforms))
            noise = jax.random.normal(noise_key, (self.vae_batch_size, self.key_size))
            optimizer = make_optimizer(self.vae_lr, common.MAX_GRAD_NORM)
            return gradient_step(optimizer, vae_loss, vae, opt_state, batch, noise)

        is_due = lambda step: step < self.vae_steps // spec.num_envs  # noqa: E731
        vae, opt_state, loss = periodically(is_due, step, update, lambda: (vae, opt_state, loss))
        return state._replace(vae=VAEState(vae, opt_state, images, loss)), {"vae_loss": loss}

    def act_greedy(self, state: State, spec: Spec, observation, episode_start, key, epsilon=0.0):
        return state, common.greedy_action(
            spec, self.q_values(state, spec, observation), epsilon, key
        )

    def memory(self, state: State) -> Memory:
        return state.dnd

    def policy_state(self, state: State) -> State:
        vae = None if state.vae is None else state.vae._replace(opt_state=None, images=None)
        return state._replace(pending=None, vae=vae)

    def q_values(
        self, state: State, spec: Spec, observation: Float[Array, "E ..."]
    ) -> Float[Array, "E A"]:
        """The memory's value of each action."""
        keys = self.keys(state, spec, observation)
        return dnd.read_mean(state.dnd, dnd.lookup(state.dnd, keys, self.num_neighbours))

    def keys(
        self, state: State, spec: Spec, observation: Float[Array, "E ..."]
    ) -> Float[Array, "E D"]:
        """Keys of observations."""
        if state.vae is not None:
            return jax.vmap(partial(encode_key, state.vae.vae))(to_chw(spec, observation))
        projection = jnp.asarray(state.projection)
        obs = flatten_obs(spec, observation, self.normalize_obs)
        # One at a time and in full precision: a state has the same key alone and among others.
        return lax.map(lambda x: jnp.matmul(x, projection, precision="highest"), obs)


def random_projection(normals: Float[Array, "S D"]) -> Float[Array, "S min(S,D)"]:
    """A random projection from S numbers to D that keeps distances on average.

    To more numbers than S it is replaced by L with L L^T = P P^T: x L has the distances of x P.
    """
    inputs, outputs = normals.shape
    scaled = normals / jnp.sqrt(outputs)
    return scaled if outputs <= inputs else jnp.linalg.cholesky(scaled @ scaled.T)


def to_chw(spec: Spec, observation: Array) -> Float[Array, "B C H W"]:
    """Images in [0, 1] with channels first."""
    shape, axes = channels_first(spec.shape)
    images = to_float(observation, spec.pixel_max).transpose(0, *(axis + 1 for axis in axes))
    return images.reshape(-1, *shape)

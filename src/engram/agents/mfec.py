"""Model-free episodic control (Blundell et al. 2016): for each action a table of the best return that ever followed a state."""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key, PyTree

from engram import replay as rp
from engram import tables as tb
from engram import waiting as wt
from engram.agents.shared import Exploring, check_neighbours, ends, epsilon, explore, greedy, see, to_judge
from engram.errors import EngramError
from engram.memory import Memory
from engram.networks import choosable, descend, optimiser, width
from engram.options import Count, Positive
from engram.schedule import when
from engram.types import Spec, TimeStep
from engram.vae import VAE, key_of
from engram.vae import loss as vae_loss
from engram.vision import channels_first, numbers

CLIP = 10.0
"""largest norm of the auto-encoder's gradient"""


class Encoder(NamedTuple):
    """Where the encoder is a VAE: it, and the images it learns from."""

    vae: VAE
    optimiser: PyTree
    images: Array
    loss: Float[Array, ""]
    """the last"""


class State(NamedTuple):
    tables: Memory
    projection: Float[Array, "S D"] | None
    encoder: Encoder | None
    waiting: wt.Waiting


@dataclass(frozen=True)
class MFEC(Exploring):
    """Acts by the best return that ever followed the nearest states."""

    neighbours: Count = 11
    """K, how many states a new one is judged by"""
    slots: Count = 1_000_000
    """of each action's table"""
    key_dim: Count = 64
    """length of a state's key"""
    encoder: Literal["projection", "vae"] = "projection"
    """what makes keys of states: a fixed random projection, or the code of a variational auto-encoder of images"""
    vae_steps: Count = 10_000
    """agent steps, taken at random, in which the auto-encoder learns; then it is fixed and the memory begins"""
    vae_images: Count = 5_000
    """latest images that it learns from"""
    vae_rate: Positive = 1e-3
    """its learning rate"""
    vae_batch: Count = 32
    """images in one of its updates"""

    def __post_init__(self):
        super().__post_init__()
        check_neighbours(self)

    def init(self, key: Key[Array, ""], spec: Spec) -> State:
        projection, encoder, dim = None, None, self.key_dim
        if self.encoder == "vae":
            encoder = self.new_encoder(key, spec)
        else:
            projection = project(jax.random.normal(key, (width(spec), self.key_dim)))
            dim = projection.shape[1]
        slots, _ = tb.size(self.slots, spec)
        nothing = tb.Entry(jnp.zeros((spec.envs, dim)), jnp.zeros(spec.envs, jnp.int32))
        return State(tb.empty(spec.actions, slots, dim), projection, encoder, wt.empty(nothing, wt.places(spec.limit)))

    def new_encoder(self, key: Key[Array, ""], spec: Spec) -> Encoder:
        if len(spec.shape) not in (2, 3, 4):
            raise EngramError(
                f"A VAE needs images, arrays of two to four axes, but an observation has shape {spec.shape}: use encoder='projection'."
            )
        shape, _ = channels_first(spec.shape)
        vae = VAE(shape, self.key_dim, key)
        if self.vae_steps >= spec.iterations * spec.envs:
            raise EngramError(
                f"The run is over before its auto-encoder has learnt for vae_steps ({self.vae_steps}): lower it or raise steps."
            )
        images = rp.empty(jnp.zeros((spec.envs, *spec.shape), spec.dtype), self.vae_images, spec.iterations)
        return Encoder(vae, optimiser(self.vae_rate, CLIP).init(vae), images, jnp.zeros(()))  # pyright: ignore

    def act(self, state: State, spec: Spec, timestep: TimeStep, step: Int[Array, ""], key: Key[Array, ""]):
        envs = spec.envs
        judged = self.keys(state, spec, to_judge(self, spec, timestep))
        waiting = wt.accumulate(state.waiting, timestep.reward, self.gamma)
        ready = wt.oldest(waiting, tb.WRITES)
        new = tb.writing(ready, spec.actions)
        near = tb.recall(state.tables, jnp.concatenate([judged, new.key]), self.neighbours)
        read, written = tb.split(near, (len(judged), tb.WRITES * envs))
        tables, q = tb.settled(state.tables, tb.read_mean(state.tables, read))
        q = choosable(spec, q)
        q, q_reached = q[:envs], q[-envs:]
        tables = tb.write(tables, written, new, step, tb.size(self.slots, spec)[1])

        before = self.vae_steps // envs if self.encoder == "vae" else 0
        begun = step >= before
        chance = jnp.where(begun, epsilon(self, spec, step - before), 1.0)
        action = explore(q, chance, jax.random.uniform(key, (2, envs)))
        rest = jnp.where(ends(self, spec, timestep), 0.0, jnp.max(q_reached, axis=-1))  # what a cut episode would still have brought
        waiting = wt.drop(waiting, jnp.sum(ready.when, axis=-1))
        waiting = wt.close(waiting, timestep.terminated | timestep.truncated, rest)
        waiting = wt.append(waiting, tb.Entry(judged[:envs], action), begun)
        encoder = state.encoder
        if encoder is not None:
            encoder = encoder._replace(images=rp.store(encoder.images, timestep.observation, step))
        metrics = {
            "epsilon": chance,
            "value": jnp.mean(jnp.max(q, axis=-1)),
            "memory": jnp.sum(tables.filled).astype(jnp.float32),
        }
        return State(tables, state.projection, encoder, waiting), action, metrics

    def learn(self, state: State, spec: Spec, step: Int[Array, ""], key: Key[Array, ""]):
        if state.encoder is None:
            return state, {}
        vae, optimiser_state, images, loss = state.encoder

        def update():
            lot_key, noise_key = jax.random.split(key)
            batch = rp.sample(images, step + 1, jax.random.uniform(lot_key, (self.vae_batch,)))
            noise = jax.random.normal(noise_key, (self.vae_batch, self.key_dim))
            return descend(optimiser(self.vae_rate, CLIP), vae_loss, vae, optimiser_state, pictures(spec, batch), noise)

        as_before = vae, optimiser_state, loss
        vae, optimiser_state, loss = when(lambda step: step < self.vae_steps // spec.envs, step, update, lambda: as_before)
        return state._replace(encoder=Encoder(vae, optimiser_state, images, loss)), {"vae_loss": loss}

    def keys(self, state: State, spec: Spec, observation: Float[Array, "E ..."]) -> Float[Array, "E D"]:
        if state.encoder is not None:
            return jax.vmap(partial(key_of, state.encoder.vae))(pictures(spec, observation))
        projection = jnp.asarray(state.projection)
        seen = see(self, spec, observation)
        # One at a time and in full precision, so that a state seen again, alone or among others, has the same key.
        return lax.map(lambda x: jnp.matmul(x, projection, precision="highest"), seen)

    def values(self, state: State, spec: Spec, observation: Float[Array, "E ..."]) -> Float[Array, "E A"]:
        """What each action is held to be worth."""
        return tb.read_mean(state.tables, tb.recall(state.tables, self.keys(state, spec, observation), self.neighbours))

    def play(self, state: State, spec: Spec, observation, first, key: Key[Array, ""], epsilon: Float[Array, ""] | float = 0.0):
        return state, greedy(spec, self.values(state, spec, observation), epsilon, key)


def project(draws: Float[Array, "S D"]) -> Float[Array, "S min(S,D)"]:
    """A random projection from S numbers to D, scaled to keep distances on average. Where it leads to more numbers than there were,
    fewer do: with L L^T = P P^T, x L has just the distances of x P."""
    states, dim = draws.shape
    scaled = draws / jnp.sqrt(dim)
    return scaled if dim <= states else jnp.linalg.cholesky(scaled @ scaled.T)


def pictures(spec: Spec, observation: Array) -> Float[Array, "B C H W"]:
    """Images with values in [0, 1] and channels in front."""
    shape, axes = channels_first(spec.shape)
    return numbers(observation, spec.brightest).transpose(0, *(axis + 1 for axis in axes)).reshape(-1, *shape)

"""Resets for many updates per step (D'Oro et al. 2023; BBF, Schwarzer et al. 2023).

Every so often the encoder is shrunk and perturbed and the head is new. After a reset the horizon of
TD targets grows: n falls and gamma rises exponentially.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from engram import replay_buffer
from engram.networks import Network, VisualNetwork
from engram.periodic import periodically
from engram.replay_buffer import NStepIndices, Transition
from engram.types import Spec


class Horizon(NamedTuple):
    """Rewards in a TD target, and the discount factor."""

    n: Int[Array, ""] | int
    gamma: Float[Array, ""] | float


def horizon(config: Any, spec: Spec, step: Int[Array, ""]) -> Horizon:
    """n and gamma at this iteration: their last values, if nothing is annealed."""
    n, gamma = config.n_step, config.gamma
    if config.n_step_start is None and config.gamma_start is None:
        return Horizon(n, gamma)
    progress = jnp.minimum(env_steps_since_reset(config, spec, step) / config.anneal_steps, 1.0)
    if config.n_step_start is not None:
        annealed = geometric(config.n_step_start, n, progress)
        n = jnp.round(annealed).astype(jnp.int32)
    if config.gamma_start is not None:
        gamma = 1 - geometric(1 - config.gamma_start, 1 - gamma, progress)
    return Horizon(n, gamma)


def geometric(first: float, last: float, progress: Float[Array, ""]) -> Float[Array, ""]:
    """From the first to the last value by equal factors; `progress` goes from 0 to 1."""
    return first * (last / first) ** progress


def sample_n_step(
    config: Any, spec: Spec, replay: Transition, step: Int[Array, ""], uniforms: Float[Array, "B"]
) -> NStepIndices:
    """n-step returns from replay, of this iteration's horizon."""
    n, gamma = horizon(config, spec, step)
    longest = max(config.n_step, config.n_step_start or 0)
    shorter = None if config.n_step_start is None else jnp.asarray(n)
    return replay_buffer.n_step(replay, step, longest, gamma, uniforms, shorter)


def iterations_between(config: Any, spec: Spec) -> int:
    """Iterations between two resets."""
    return max(1, config.reset_interval // spec.num_envs)


def num_resets(config: Any, spec: Spec) -> int:
    """Resets of a whole run; none in its last interval, which would end before it has learned."""
    if config.reset_interval is None:
        return 0
    return max(0, spec.num_iterations // iterations_between(config, spec) - 1)


def is_due(config: Any, spec: Spec, step: Int[Array, ""] | int) -> Bool[Array, ""] | bool:
    """Whether the networks are reset after this iteration's updates."""
    interval = iterations_between(config, spec)
    return (step > 0) & (step % interval == 0) & (step <= num_resets(config, spec) * interval)


def env_steps_since_reset(config: Any, spec: Spec, step: Int[Array, ""]) -> Int[Array, ""]:
    """Environment steps since the last reset, or since learning started."""
    started = config.learning_starts // spec.num_envs
    if count := num_resets(config, spec):
        interval = iterations_between(config, spec)
        # At the iteration of a reset itself the updates come before it.
        last_reset = jnp.clip((step - 1) // interval, 0, count) * interval
        started = jnp.maximum(started, last_reset)
    return jnp.maximum(step - started, 0) * spec.num_envs


def reset_networks(
    config: Any,
    spec: Spec,
    step: Int[Array, ""],
    new_network: Callable[[], Network],
    networks: tuple[Network, Network, PyTree],
    new_opt_state: Callable[[Any], PyTree],
) -> tuple[Network, Network, PyTree]:
    """The online and the target network and the optimizer's state, reset where that is due."""
    if not num_resets(config, spec):
        return networks
    online, target, _ = networks

    def reset():
        new = new_network()
        kept = shrink_and_perturb(online, new, config.shrink_factor)
        return kept, shrink_and_perturb(target, new, config.shrink_factor), new_opt_state(kept)

    return periodically(lambda step: is_due(config, spec, step), step, reset, lambda: networks)


def shrink_and_perturb(network: Network, new: Network, shrink_factor: float) -> Network:
    """The encoder's weights moved towards new ones (Ash and Adams 2020), and a new head.

    Without an encoder all of the network is new.
    """
    if not isinstance(network, VisualNetwork):
        return new

    def mix(old, new):
        return shrink_factor * old + (1 - shrink_factor) * new

    encoder = jax.tree.map(mix, network.encoder, new.encoder)  # pyright: ignore
    return eqx.tree_at(lambda n: n.encoder, new, encoder)

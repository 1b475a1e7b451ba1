"""What is learnt towards: targets of temporal differences."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def td_target(reward: Float[Array, "*B"], end: Float[Array, "*B"], q_next: Float[Array, "*B A"], gamma: float) -> Float[Array, "*B"]:
    """r + gamma max_a' Q(s', a'), without what would follow an end (Eq. 8)."""
    return reward + gamma * (1 - end) * jnp.max(q_next, axis=-1)

"""What is learnt towards: targets of temporal differences, and advantages."""

import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float


def td_target(
    reward: Float[Array, "*B"],
    end: Float[Array, "*B"],
    q_next: Float[Array, "*B A"],
    gamma: float | Float[Array, "*B"],
    chooser: Float[Array, "*B A"] | None = None,
) -> Float[Array, "*B"]:
    """r + gamma max_a' Q(s', a'), without what would follow an end (Eq. 8). With a `chooser`, a' is the best by that one (van Hasselt et
    al. 2016)."""
    if chooser is None:
        best = jnp.max(q_next, axis=-1)
    else:
        best = jnp.take_along_axis(q_next, jnp.argmax(chooser, axis=-1)[..., None], axis=-1)[..., 0]
    return reward + gamma * (1 - end) * best


def td_loss(target: Float[Array, "*B"], value: Float[Array, "*B"], huber: bool = False) -> Float[Array, ""]:
    """The mean of the squared errors or, with `huber`, of half of them where an error is small and of its size less 1/2 where it is not."""
    return jnp.mean(optax.huber_loss(value, target) if huber else (target - value) ** 2)


def advantages(
    reward: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    done: Float[Array, "T *B"],
    last: Float[Array, "*B"],
    gamma: float,
    decay: float,
) -> Float[Array, "T *B"]:
    """Generalised advantage estimates of T steps (Schulman et al. 2016, Eq. 16): errors of the value, discounted by gamma and decay up to
    the episode's end. `last` is the value of what follows the last step."""
    follows = 1 - done
    error = reward + gamma * follows * jnp.concatenate([value[1:], last[None]]) - value

    def back(later, now):
        error, follows = now
        advantage = error + gamma * decay * follows * later
        return advantage, advantage

    return lax.scan(back, jnp.zeros_like(last), (error, follows), reverse=True)[1]

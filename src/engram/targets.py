"""Learning targets: temporal differences (Eq. 8) and generalized advantages."""

from typing import Literal

import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float

Loss = Literal["mse", "huber"]


def td_target(
    reward: Float[Array, "*B"],
    terminal: Float[Array, "*B"],
    next_q: Float[Array, "*B A"],
    gamma: float | Float[Array, "*B"],
    selector_q: Float[Array, "*B A"] | None = None,
) -> Float[Array, "*B"]:
    """r + gamma max_a' Q(s', a'), without a bootstrap after a terminal transition (Eq. 8).

    With `selector_q`, a' is greedy by it (double Q-learning, van Hasselt et al. 2016).
    """
    if selector_q is None:
        next_value = jnp.max(next_q, axis=-1)
    else:
        greedy = jnp.argmax(selector_q, axis=-1)[..., None]
        next_value = jnp.take_along_axis(next_q, greedy, axis=-1)[..., 0]
    return reward + gamma * (1 - terminal) * next_value


def n_step_targets(
    reward: Float[Array, "T *B"],
    terminal: Float[Array, "T *B"],
    truncated: Bool[Array, "T *B"],
    next_value: Float[Array, "T *B"],
    gamma: float,
    n: int,
) -> Float[Array, "T *B"]:
    """TD targets along a sequence: n rewards, then a bootstrap.

    There are fewer rewards where the sequence or the episode ends sooner. `next_value` is that of
    the state after each step. After a truncated step it is unknown, and so is that step's target.
    """
    target = reward + gamma * (1 - terminal) * next_value
    for _ in range(n - 1):
        later = jnp.where(truncated[1:], next_value[:-1], target[1:])
        later = jnp.concatenate([later, next_value[-1:]])
        target = reward + gamma * (1 - terminal) * later
    return target


def td_loss(
    target: Float[Array, "*B"], value: Float[Array, "*B"], loss: Loss = "mse"
) -> Float[Array, ""]:
    """Mean squared or mean Huber TD error."""
    return jnp.mean(optax.huber_loss(value, target) if loss == "huber" else (target - value) ** 2)


def lower_bound_loss(bound: Float[Array, "*B"], value: Float[Array, "*B"]) -> Float[Array, ""]:
    """Mean squared amount by which values are below a bound (self-imitation, Oh et al. 2018)."""
    return jnp.mean(jnp.maximum(bound - value, 0.0) ** 2)


def quantile_target(
    reward: Float[Array, "*B"],
    terminal: Float[Array, "*B"],
    next_quantiles: Float[Array, "*B M A"],
    gamma: float | Float[Array, "*B"],
    selector_q: Float[Array, "*B A"],
) -> Float[Array, "*B M"]:
    """r + gamma Z(s', a'), samples of the return's distribution; a' is greedy by `selector_q`."""
    greedy = jnp.argmax(selector_q, axis=-1)[..., None, None]
    samples = jnp.take_along_axis(next_quantiles, greedy, axis=-1)[..., 0]
    return reward[..., None] + jnp.expand_dims(gamma * (1 - terminal), -1) * samples


def quantile_loss(
    target: Float[Array, "*B M"], quantiles: Float[Array, "*B N"], levels: Float[Array, "*B N"]
) -> Float[Array, ""]:
    """Quantile regression with Huber's loss (Dabney et al. 2018, IQN, Eq. 3).

    It is summed over the N levels and averaged over the M samples of the target.
    """
    error = target[..., None, :] - quantiles[..., :, None]
    weight = jnp.abs(levels[..., None] - (error < 0))
    return jnp.mean(jnp.sum(jnp.mean(weight * optax.huber_loss(error), axis=-1), axis=-1))


def generalized_advantages(
    reward: Float[Array, "T *B"],
    value: Float[Array, "T *B"],
    done: Float[Array, "T *B"],
    last_value: Float[Array, "*B"],
    gamma: float,
    gae_lambda: float,
) -> Float[Array, "T *B"]:
    """Generalized advantage estimates of T steps (Schulman et al. 2016, Eq. 16).

    `last_value` is the value of the state after the last step.
    """
    not_done = 1 - done
    next_value = jnp.concatenate([value[1:], last_value[None]])
    td_error = reward + gamma * not_done * next_value - value

    def backward(later, step):
        td_error, not_done = step
        advantage = td_error + gamma * gae_lambda * not_done * later
        return advantage, advantage

    steps = (td_error, not_done)
    return lax.scan(backward, jnp.zeros_like(last_value), steps, reverse=True)[1]

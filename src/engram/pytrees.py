"""Leaves of pytrees: PRNG keys, and dtype and shape in words."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def signature(leaf: Any) -> str:
    """A leaf's dtype and shape, as `float32[3,4]`."""
    leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"

"""Policy folders: a trained agent without what only learning needs, to keep and to share.

They have a run folder's config.json and, instead of a checkpoint, policy.safetensors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from engram import checkpoint
from engram.errors import EngramError
from engram.files import write_json
from engram.run_dir import RunDir


def save(
    path: Path, config: Mapping[str, Any], seed: int, state: PyTree, step: int, half: bool = False
) -> None:
    """Writes the policy state of one seed; with `half`, its numbers have half precision."""
    folder = RunDir(path, dict(config) | {"seeds": [seed]})
    state = jax.tree.map(lambda x: x[None], state)  # as of several runs, of which this is one
    if half:
        halved = _halve(state)
        if any(map(_is_lost, jax.tree.leaves(state), jax.tree.leaves(halved))):
            raise EngramError(
                "Some numbers of this agent are too large for half precision: leave half out."
            )
        state = halved
    path.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder.policy, state, {"step": step, "half": half})
    write_json(path / "config.json", folder.config)


def restore(folder: RunDir, template: PyTree) -> PyTree:
    """The policy states of the folder's runs, of the structure of `template`."""
    is_half = folder.meta().get("half", False)
    stored = jax.eval_shape(_halve, template) if is_half else template
    state, _ = checkpoint.restore(folder.policy, stored)
    return jax.tree.map(lambda x, like: x.astype(like.dtype), state, template) if is_half else state


def _is_lost(x: Array, halved: Array) -> bool:
    """Whether a finite number is none in half precision."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return is_float and bool(jnp.any(jnp.isfinite(x) & ~jnp.isfinite(halved)))


def _halve(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.astype(jnp.float16) if x.dtype == jnp.float32 else x, tree)

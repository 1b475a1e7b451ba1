"""Policy folders: a trained agent without what only learning needs, to keep and to share.

They have a run folder's config.json and, instead of a checkpoint, policy.safetensors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from engram import checkpoint
from engram.files import write_json
from engram.run_dir import RunDir


def save(
    path: Path, config: Mapping[str, Any], seed: int, state: PyTree, step: int, half: bool = False
) -> None:
    """Writes the policy state of one seed; with `half`, its numbers have half precision."""
    path.mkdir(parents=True, exist_ok=True)
    folder = RunDir(path, dict(config) | {"seeds": [seed]})
    state = jax.tree.map(lambda x: x[None], state)  # as of several runs, of which this is one
    meta = {"step": step, "half": half}
    checkpoint.save(folder.policy, _halve(state) if half else state, meta)
    write_json(path / "config.json", folder.config)


def restore(folder: RunDir, template: PyTree) -> PyTree:
    """The policy states of the folder's runs, of the structure of `template`."""
    is_half = folder.meta().get("half", False)
    stored = jax.eval_shape(_halve, template) if is_half else template
    state, _ = checkpoint.restore(folder.policy, stored)
    return jax.tree.map(lambda x, like: x.astype(like.dtype), state, template) if is_half else state


def _halve(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.astype(jnp.float16) if x.dtype == jnp.float32 else x, tree)

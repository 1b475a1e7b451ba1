"""Trained agents as files that need neither JAX nor Engram."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from engram import policy_dir, training, zoo
from engram.agents import Random
from engram.errors import EngramError
from engram.exporters import check, player
from engram.exporters.arrays import to_npz
from engram.exporters.onnx import OnnxPlayer, to_onnx
from engram.files import atomic_write, check_target
from engram.run_dir import RunDir
from engram.types import Agent

PLAYER = "player.py"
"""the file beside a .npz file"""


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how often it chose the agent's action."""

    file: Path
    seed: int
    agreed: int
    compared: int
    in_task: bool
    """whether the observations are of the task; else they were drawn at random"""


def export(
    path: str | Path,
    file: str | Path,
    seed: int | None = None,
    overwrite: bool = False,
    half: bool = False,
    agent: Agent | None = None,
    allow_modules: Sequence[str] = (),
) -> Exported:
    """Writes the trained agent of a run folder as .npz, with a player in NumPy, or as .onnx.

    A name without an ending is that of a policy folder, which is a run folder without what learns;
    with `half` its numbers have half precision. The agent is that of one seed, or of the first. An
    agent whose class cannot be imported must be given again. Modules that the folder names are
    imported only if `allow_modules` names them too.
    """
    zoo.refuse(file)
    file = Path(file)
    if not file.suffix:
        return _export_folder(path, file, seed, overwrite, half, agent, allow_modules)
    if half:
        raise EngramError("Only policy folders have half precision: leave half out.")
    if file.suffix.lower() not in (".npz", ".onnx"):
        raise EngramError(
            f"Engram cannot write {file}: choose a name that ends in .npz or .onnx, or one without "
            "an ending for a policy folder."
        )
    check_target(file, (".npz", ".onnx"))
    is_npz = file.suffix.lower() == ".npz"
    source = Path(player.__file__).read_bytes()
    player_file = file.with_name(PLAYER)
    _check_absent(file, overwrite)
    if is_npz and not (player_file.is_file() and player_file.read_bytes() == source):
        _check_absent(player_file, overwrite)
    with jax.default_device(jax.devices("cpu")[0]):
        policy = training.load(path, seed, agent, allow_modules)
        if isinstance(policy.agent, Random):
            raise EngramError(
                "random has no greedy action to export: name the run of another agent."
            )
        run = training.load_training(path, agent=agent, needs_env=False)
        assert run.folder is not None
        if is_npz:
            content = to_npz(policy)
            copy = player.Player(BytesIO(content))
        else:
            content = to_onnx(policy)
            copy = OnnxPlayer(content, policy.spec)
        in_task = not run.folder.config.get("custom_task")
        rollout = check.rollout_in(run.task if in_task else None, policy.spec)
        agreed = check.count_agreements(policy, copy, rollout)
    with atomic_write(file) as target:
        target.write(content)
    if is_npz:
        with atomic_write(player_file) as target:
            target.write(source)
    seed = run.seeds[0] if seed is None else seed
    return Exported(file, seed, agreed, check.NUM_OBSERVATIONS, in_task)


def _export_folder(
    path: str | Path,
    folder: Path,
    seed: int | None,
    overwrite: bool,
    half: bool,
    agent: Agent | None,
    allow_modules: Sequence[str],
) -> Exported:
    """Writes a policy folder, and compares it with the agent."""
    _check_absent(folder, overwrite)
    if folder.exists() and not RunDir(folder, {}).is_policy:
        raise EngramError(f"{folder} is no policy folder, so it is kept: name another.")
    policy = training.load(path, seed, agent, allow_modules)
    run = training.load_training(path, agent=agent, needs_env=False)
    assert run.folder is not None
    seed = run.seeds[0] if seed is None else seed
    step = training.trained_steps(path)
    in_task = not run.folder.config.get("custom_task")
    rollout = check.rollout_in(run.task if in_task else None, policy.spec)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".") as scratch:
        new = Path(scratch) / folder.name
        policy_dir.save(new, run.folder.config, seed, policy.state, step, half)
        copy = check.PolicyCopy(training.load(new, seed, agent))
        agreed = check.count_agreements(policy, copy, rollout)
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        new.rename(folder)
    return Exported(folder, seed, agreed, check.NUM_OBSERVATIONS, in_task)


def _check_absent(file: Path, overwrite: bool) -> None:
    """Raises if the file exists and must not be replaced."""
    if file.exists() and not overwrite:
        raise EngramError(f"{file} exists: name another file, or replace it with --overwrite.")

"""Records MiniWorld's rooms for `test_pickup.py`: `python tests/unit/record_pickup.py`."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from engram.envs.pickup.config import PickupConfig
from engram.envs.pickup.jax_env import PickupState
from engram.paper import miniworld
from engram.paper.miniworld import Frames, Recorder, Transitions

FILE = Path(__file__).parent / "data" / "pickup.npz"
NUM_OBJS = 5
CONFIG = PickupConfig(num_objs=NUM_OBJS)
NUM_STARTS, NUM_RECORDED, NUM_QUIET, NUM_FRAMES = 400, 30_000, 300, 12


def main() -> None:
    transitions = miniworld.record_transitions(CONFIG, NUM_RECORDED)
    is_blocked = np.all(transitions.position == transitions.state.position, axis=-1)
    is_blocked &= transitions.action >= 2
    is_rare = (transitions.reward > 0) | transitions.truncated
    others = np.arange(NUM_RECORDED) % (NUM_RECORDED // NUM_QUIET) == 0
    blocked = np.cumsum(is_blocked) % 20 == 0
    transitions = jax.tree.map(lambda x: x[is_rare | (is_blocked & blocked) | others], transitions)
    frames = miniworld.record_frames(CONFIG, 5 * NUM_FRAMES)
    parts = {
        "transitions": transitions,
        "frames": jax.tree.map(lambda x: x[::5], frames),
        "starts": record_starts(),
    }
    arrays = {name: flatten(part) for name, part in parts.items()}
    np.savez_compressed(
        FILE, **{f"{name}.{k}": x for name, part in arrays.items() for k, x in part.items()}
    )
    print(f"{FILE}: {FILE.stat().st_size / 1e3:.0f} kB, {len(transitions.action)} transitions")


def record_starts() -> PickupState:
    recorder = Recorder(CONFIG, draws=False)
    rows = []
    for seed in range(NUM_STARTS):
        recorder.reset(seed)
        rows.append(recorder.state())
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def flatten(part: Any) -> dict[str, np.ndarray]:
    """Arrays by name; those of the state within begin with `state.`."""
    fields = part._asdict()
    state = fields.pop("state", None)
    if state is not None:
        fields |= {f"state.{name}": x for name, x in state._asdict().items()}
    return fields


def load() -> tuple[Transitions, Frames, PickupState]:
    """Transitions, frames and starts as they were recorded."""
    with np.load(FILE) as arrays:
        return tuple(
            make({k.removeprefix(f"{name}."): x for k, x in arrays.items() if k.startswith(name)})
            for name, make in (
                ("transitions", lambda fields: unflatten(Transitions, fields)),
                ("frames", lambda fields: unflatten(Frames, fields)),
                ("starts", lambda fields: PickupState(**fields)),
            )
        )


def unflatten(part: Any, fields: dict[str, np.ndarray]) -> Any:
    state = {k.removeprefix("state."): x for k, x in fields.items() if k.startswith("state.")}
    others = {name: x for name, x in fields.items() if not name.startswith("state.")}
    return part(state=PickupState(**state), **others)


if __name__ == "__main__":
    main()

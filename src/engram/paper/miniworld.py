"""Our 3D task against MiniWorld: the same transitions, and frames alike.

`python -m engram.paper.miniworld` measures both, and writes `results/pickup/miniworld.json` and
`frames.png` beside it. The page there is `pickup_page`'s.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image

from engram.envs.pickup import config as constants
from engram.envs.pickup import miniworld
from engram.envs.pickup.config import COLORS, PickupConfig
from engram.envs.pickup.jax_env import JaxPickup, PickupState
from engram.files import write_json
from engram.provenance import describe_machine

KINDS = ("Ball", "Box", "Key")
"""classes of MiniWorld, in the order of our kinds"""
P_RANDOM = 0.3
"""probability of a random action of the agents that make transitions"""
P_FORWARD = 0.8
"""probability that a wanderer's other actions go forward, else back"""
TOLERANCE = 1e-4
"""largest difference of positions (meters) and headings (radians)"""
LARGE, VERY_LARGE = 16, 48
"""differences of a pixel's byte that one sees if one looks for them, and at once"""
NUM_TRANSITIONS, NUM_FRAMES = 100_000, 1_000
FRAMES_PER_ROOM = 5
NUM_PAIRS, MIN_SHARE = 8, 0.02
"""frames in the picture, each of another room, and the share of pixels that objects have there"""
FOLDER, NUMBERS, PICTURE = "pickup", "miniworld.json", "frames.png"


class Transitions(NamedTuple):
    """States of MiniWorld, actions, and what MiniWorld made of them."""

    state: PickupState
    action: Int[np.ndarray, "N"]
    position: Float[np.ndarray, "N 2"]
    heading: Float[np.ndarray, "N"]
    present: Bool[np.ndarray, "N K"]
    reward: Float[np.ndarray, "N"]
    terminated: Bool[np.ndarray, "N"]
    truncated: Bool[np.ndarray, "N"]


class Recorder:
    """MiniWorld's room, whose state can be read and set."""

    def __init__(self, config: PickupConfig, draws: bool = True):
        self.config = config
        self.env: Any = miniworld.make(config).unwrapped
        if not draws:
            self.env.render_obs = lambda *_: np.zeros(constants.FRAME_SHAPE, np.uint8)
            self.env._render_static = lambda: None
        self.objects: list[Any] = []
        self.colors: list[int] = []

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self.objects = [x for x in self.env.entities if x is not self.env.agent]
        self.colors = [COLORS.index(_color(x)) for x in self.objects]

    def state(self) -> PickupState:
        """The state, as numbers of double precision."""
        present = np.array([x in self.env.entities for x in self.objects])
        places = [x.pos[[0, 2]] if x.pos is not None else (0, 0) for x in self.objects]
        make_state: Any = PickupState
        return make_state(
            position=np.array(self.env.agent.pos[[0, 2]]),
            heading=np.float64(self.env.agent.dir),
            kind=np.array([KINDS.index(type(x).__name__) for x in self.objects]),
            color=np.array(self.colors),
            places=np.array(places),
            directions=np.array([x.dir for x in self.objects]),
            present=present,
            in_hand=np.zeros(len(self.objects), bool),
            episode_step=np.int32(self.env.step_count),
        )

    def place_agent(self, position: Sequence[float], heading: float) -> None:
        self.env.agent.pos = np.array([position[0], 0.0, position[1]])
        self.env.agent.dir = heading

    def frame(self, with_objects: bool = True) -> UInt8[np.ndarray, "H W 3"]:
        """What the agent sees."""
        entities = self.env.entities
        if not with_objects:
            self.env.entities = [self.env.agent]
        frame = self.env.render_obs().copy()
        self.env.entities = entities
        return frame


def _color(entity: Any) -> str:
    """A box says its color; of a mesh it is in the name of the file."""
    if hasattr(entity, "color"):
        return entity.color
    names = {id(mesh): Path(path).stem for path, mesh in type(entity.mesh).cache.items()}
    return names[id(entity.mesh)].split("_")[1]


def collector_action(state: PickupState) -> int:
    """Goes straight to the nearest object and picks it up."""
    gaps = state.places - state.position
    distance = np.where(state.present, np.linalg.norm(gaps, axis=-1), np.inf)
    nearest = int(np.argmin(distance))
    reach = (
        constants.PICKUP_DISTANCE + constants.PICKUP_RADIUS + constants.RADII[state.kind[nearest]]
    )
    angle = math.atan2(-gaps[nearest][1], gaps[nearest][0]) - float(state.heading)
    angle = (angle + math.pi) % (2 * math.pi) - math.pi
    if abs(angle) > math.pi / constants.TURNS_PER_CIRCLE:
        return constants.TURN_LEFT if angle > 0 else constants.TURN_RIGHT
    return constants.PICKUP if distance[nearest] < reach - 0.02 else constants.FORWARD


def record_transitions(config: PickupConfig, count: int, seed: int = 0) -> Transitions:
    """Transitions of MiniWorld, in every second episode of a collector, else of a wanderer.

    A collector picks objects up, a wanderer goes into walls and objects. Both often act at random.
    """
    recorder, rng = Recorder(config, draws=False), np.random.default_rng(seed)
    rows, done, collects = [], True, False
    for _ in range(count):
        if done:
            recorder.reset(int(rng.integers(2**31)))
            collects = not collects
        state = recorder.state()
        if rng.random() < P_RANDOM:
            action = int(rng.integers(constants.NUM_ACTIONS))
        elif collects:
            action = collector_action(state)
        else:
            action = constants.FORWARD if rng.random() < P_FORWARD else constants.BACK
        _, reward, terminated, truncated, _ = recorder.env.step(action)
        done = terminated or truncated
        after = recorder.state()
        row: Any = (state, np.int32(action), after.position, after.heading, after.present)
        row += (np.float64(reward), np.bool_(terminated), np.bool_(truncated))
        rows.append(Transitions(*row))
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def compare_transitions(config: PickupConfig, transitions: Transitions) -> dict[str, float]:
    """The largest differences of ours, and how many of its transitions differ by more."""
    env = JaxPickup(config)
    state = _to_jax(transitions.state)
    state, result = jax.jit(jax.vmap(lambda s, a: env.step((), s, a)))(state, transitions.action)
    gap = np.max(np.abs(state.position - transitions.position), axis=-1)
    turn = np.abs(state.heading - transitions.heading)
    differs = (gap > TOLERANCE) | (turn > TOLERANCE)
    differs |= np.any(state.present != transitions.present, axis=-1)
    for name in ("reward", "terminated", "truncated"):
        differs |= np.asarray(getattr(result, name)) != getattr(transitions, name)
    blocked = np.isin(transitions.action, (constants.FORWARD, constants.BACK))
    blocked &= np.all(transitions.position == transitions.state.position, axis=-1)
    return {
        "transitions": len(gap),
        "differing": int(np.sum(differs)),
        "largest_gap_in_meters": float(np.max(gap)),
        "largest_turn_in_radians": float(np.max(turn)),
        "objects_picked_up": int(np.sum(transitions.reward)),
        "steps_into_walls_and_objects": int(np.sum(blocked)),
        "terminated": int(np.sum(transitions.terminated)),
        "truncated": int(np.sum(transitions.truncated)),
    }


class Frames(NamedTuple):
    """States, and the frames that MiniWorld draws of them with their objects and without."""

    state: PickupState
    frame: UInt8[np.ndarray, "N H W 3"]
    empty: UInt8[np.ndarray, "N H W 3"]


def record_frames(config: PickupConfig, count: int, seed: int = 0) -> Frames:
    """Frames from random places in the room, a new room every `FRAMES_PER_ROOM`."""
    recorder, rng = Recorder(config), np.random.default_rng(seed)
    low, high = constants.AGENT_RADIUS, config.size - constants.AGENT_RADIUS
    rows = []
    for i in range(count):
        if i % FRAMES_PER_ROOM == 0:
            recorder.reset(int(rng.integers(2**31)))
        recorder.place_agent(rng.uniform(low, high, 2).tolist(), rng.uniform(-math.pi, math.pi))
        empty = recorder.frame(with_objects=False)
        rows.append(Frames(recorder.state(), recorder.frame(), empty))
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def draw_frames(config: PickupConfig, state: PickupState) -> UInt8[np.ndarray, "N H W 3"]:
    """Our frames of these states."""
    env = JaxPickup(config)
    return np.asarray(jax.lax.map(lambda s: env.draw((), s), _to_jax(state), batch_size=50))


def compare_frames(config: PickupConfig, frames: Frames) -> dict[str, float]:
    """How far bytes differ, and by how much the pixels of objects overlap."""
    ours = draw_frames(config, frames.state)
    nobody = frames.state._replace(present=np.zeros_like(frames.state.present))
    our_mask = _differs(ours, draw_frames(config, nobody))
    their_mask = _differs(frames.frame, frames.empty)
    gap = np.abs(ours.astype(int) - frames.frame)
    return {
        "frames": len(ours),
        "mean_difference": float(np.mean(gap)),
        "mean_difference_of_worst_frame": float(np.max(np.mean(gap, axis=(1, 2, 3)))),
        "share_of_pixels_that_differ_by_16": float(np.mean(np.max(gap, axis=-1) > LARGE)),
        "share_of_pixels_that_differ_by_48": float(np.mean(np.max(gap, axis=-1) > VERY_LARGE)),
        "correlation": float(np.corrcoef(ours.ravel(), frames.frame.ravel())[0, 1]),
        "overlap_of_objects": float(np.sum(our_mask & their_mask) / np.sum(our_mask | their_mask)),
    }


def _differs(a: np.ndarray, b: np.ndarray) -> Bool[np.ndarray, "N H W"]:
    return np.max(np.abs(a.astype(int) - b), axis=-1) > LARGE


def _to_jax(state: PickupState) -> PickupState:
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else None), state
    )


def draw_pairs(config: PickupConfig, frames: Frames, scale: int = 3) -> Image.Image:
    """Pairs of frames side by side, MiniWorld's above ours."""
    ours = draw_frames(config, frames.state)
    height, width, _ = constants.FRAME_SHAPE
    page = np.full((2 * height + 3, len(ours) * (width + 1) - 1, 3), 255, np.uint8)
    for i, pair in enumerate(zip(frames.frame, ours, strict=True)):
        for row, frame in enumerate(pair):
            top, left = row * (height + 3), i * (width + 1)
            page[top : top + height, left : left + width] = frame
    image = Image.fromarray(page)
    return image.resize((scale * image.width, scale * image.height), Image.Resampling.NEAREST)


def main() -> None:
    """Measures, and writes the numbers and the picture."""
    parser = argparse.ArgumentParser(prog="python -m engram.paper.miniworld", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    start = time.monotonic()
    found: dict[str, Any] = {}
    for num_objs in (3, 5):
        config = PickupConfig(num_objs=num_objs)
        transitions = record_transitions(config, NUM_TRANSITIONS // 2, seed=num_objs)
        frames = record_frames(config, NUM_FRAMES // 2, seed=num_objs)
        found[f"{num_objs} objects"] = {
            "transitions": compare_transitions(config, transitions),
            "frames": compare_frames(config, frames),
        }
    with_objects = np.mean(_differs(frames.frame, frames.empty), axis=(1, 2)) > MIN_SHARE
    firsts = [
        i
        for i in np.flatnonzero(with_objects)
        if not with_objects[i - i % FRAMES_PER_ROOM : i].any()
    ]
    chosen = jax.tree.map(lambda x: x[firsts[:NUM_PAIRS]], frames)
    folder = arguments.results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    draw_pairs(config, chosen).save(folder / PICTURE, optimize=True)
    found |= {"seconds": round(time.monotonic() - start), **describe_machine()}
    write_json(folder / NUMBERS, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

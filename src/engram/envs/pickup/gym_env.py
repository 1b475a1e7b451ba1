"""The room as a Gymnasium environment, `engram/Pickup-v0`."""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces
from jaxtyping import UInt8

from engram.envs.pickup import config as constants
from engram.envs.pickup.config import PickupConfig, make_config
from engram.envs.pickup.jax_env import JaxPickup, PickupState
from engram.envs.pickup.top_view import draw_top_view
from engram.errors import EngramError

ENV_ID = "engram/Pickup-v0"
RENDER_MODES = ("human", "rgb_array")
VIEW_SHAPE = 240, 320
"""height and width of the agent's view in pictures for people, before they are doubled"""


class PickupEnv(gym.Env[np.ndarray, Any]):
    """Pick up all objects in a room; see docs/environments/pickup.md."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 15}

    def __init__(self, render_mode: Literal["human", "rgb_array"] | None = None, **arguments: Any):
        """`arguments` are those of `PickupConfig`."""
        self.config = make_config(arguments)
        if render_mode not in (None, *RENDER_MODES):
            raise EngramError(
                f"A room cannot be rendered as {render_mode!r}: choose {', '.join(RENDER_MODES)}."
            )
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(constants.NUM_ACTIONS)
        self.observation_space = spaces.Box(0, 255, constants.FRAME_SHAPE, np.uint8)
        self.state: PickupState | None = None
        self.path: list[np.ndarray] = []
        """the agent's places in this episode, x and z"""
        self._programs = _compile(self.config)
        self._window: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        state, frame = self._programs.reset(int(self.np_random.integers(2**31)))
        self.state = state
        self.path = [np.asarray(state.position)]
        self._show()
        return np.array(frame), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise EngramError(
                f"A room has no action {action!r}: give 0, 1, 2, 3 or 4 to turn left or right, go "
                "forward or back, or pick up."
            )
        if self.state is None:
            raise EngramError("The room has not been entered: call reset before step.")
        state, frame, reward, terminated = self._programs.step(self.state, int(action))
        self.state = state
        self.path.append(np.asarray(state.position))
        self._show()
        return np.array(frame), float(reward), bool(terminated), False, {}

    def render(self) -> UInt8[np.ndarray, "H W 3"] | None:  # pyright: ignore
        """The room from above beside the agent's view; a window is drawn anew at every step."""
        return self._picture() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None

    def _picture(self) -> UInt8[np.ndarray, "H W 3"]:
        if self.state is None:
            raise EngramError("The room has not been entered: call reset before render.")
        view = np.asarray(self._programs.view(self.state)).repeat(2, axis=0).repeat(2, axis=1)
        state = jax.tree.map(np.asarray, self.state)
        above = draw_top_view(state, self.path, self.config.size, view.shape[0])
        return np.concatenate([above, view], axis=1)

    def _show(self) -> None:
        """Draws the window, if there is one to be."""
        if self.render_mode != "human":
            return
        from engram.envs.window import Window

        if self._window is None:
            self._window = Window(f"Pick up {self.config.num_objs} objects")
        self._window.show(self._picture(), self.metadata["render_fps"])


class _Programs(NamedTuple):
    """Compiled functions of a room."""

    reset: Callable[..., Any]
    step: Callable[..., Any]
    view: Callable[..., Any]


@cache
def _compile(config: PickupConfig) -> _Programs:
    env = JaxPickup(config)

    @jax.jit
    def reset(seed):
        state, _ = env.reset((), jax.random.key(seed))
        return state, env.draw((), state)

    @jax.jit
    def step(state, action):
        state, result = env.step((), state, action)
        return state, env.draw((), state), result.reward, result.terminated

    return _Programs(reset, step, jax.jit(lambda state: env.draw((), state, VIEW_SHAPE)))


def register() -> None:
    """Makes `engram/Pickup-v0` known to Gymnasium."""
    if ENV_ID not in gym.registry:
        gym.register(
            ENV_ID,
            entry_point="engram.envs.pickup.gym_env:PickupEnv",
            max_episode_steps=constants.MAX_EPISODE_STEPS,
        )


def make(config: PickupConfig, render_mode: str | None = None) -> gym.Env:
    """The environment of a configuration, with its time limit."""
    register()
    arguments = {name: getattr(config, name) for name in PickupConfig.__dataclass_fields__}
    return gym.make(ENV_ID, disable_env_checker=True, render_mode=render_mode, **arguments)

"""The maze as a Gymnasium environment, `engram/Maze-v0`."""

import operator
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from jaxtyping import Float, UInt8

from engram.envs.maze import config as constants
from engram.envs.maze.config import MazeConfig, draw_image
from engram.envs.maze.image_features import maze_features
from engram.envs.maze.layout import MOVES, Layout, check_layout, draw, random_layout
from engram.envs.maze.render import draw_picture
from engram.errors import EngramError, nearest_names

ENV_ID = "engram/Maze-v0"
RENDER_MODES = ("human", "rgb_array", "ansi")
RESET_OPTIONS = ("layout", "trap")


class MazeEnv(gym.Env[np.ndarray, Any]):
    """Find the way from the first corner of a maze to the last; see docs/environments/maze.md."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 8}

    def __init__(
        self,
        render_mode: Literal["human", "rgb_array", "ansi"] | None = None,
        **arguments: Any,
    ):
        """`arguments` are those of `MazeConfig`."""
        self.config = config = make_config(arguments)
        if render_mode not in (None, *RENDER_MODES):
            raise EngramError(
                f"A maze cannot be rendered as {render_mode!r}: choose {', '.join(RENDER_MODES)}."
            )
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(MOVES))
        self.observation_space = observation_space(config)
        self.layout: Layout = config.layout
        self.position = (0, 0)
        self.trap: tuple[int, int] | None = None
        self.path: list[tuple[int, int]] = [self.position]
        """the agent's positions in this episode"""
        self.values: Float[np.ndarray, "n n"] | None = None
        """values of the cells [x, y], by which `render` colours them; set them as you like"""
        self._features = maze_features(config) if config.observation == "features" else None
        self._window: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The first observation; `options` may give the `layout` and the `trap` of the episode."""
        options = _check_options(options or {})
        layout, trap = options.get("layout"), options.get("trap")
        if layout is not None:
            layout = self._check_layout(layout)
        if trap is not None:
            trap = self._check_trap(trap)
        super().reset(seed=seed)
        size = self.config.size
        if layout is not None:
            self.layout = layout
        elif self.config.is_dynamic:
            uniforms = self.np_random.random((2 * size**2, 4))
            loops = self.np_random.random((size, size, 4))
            self.layout = random_layout(uniforms, loops, self.config.loop_rate)
        else:
            self.layout = self.config.layout
        if self.config.trap:
            cell = int(self.np_random.integers(1, size**2 - 1))
            self.trap = trap or (cell // size, cell % size)
        self.position = (0, 0)
        self.path = [self.position]
        self._show()
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise EngramError(
                f"A maze has no action {action!r}: give 0, 1, 2 or 3 for north, south, east or "
                "west."
            )
        action = int(action)
        x, y = self.position
        if not self.layout[x, y, action]:
            reward = constants.WALL_REWARD
        else:
            dx, dy = MOVES[action]
            self.position = int(x + dx), int(y + dy)
            self.path.append(self.position)
            reward = self._reward_here()
        is_goal = self.position == self.config.goal
        self._show()
        return self._observe(), reward, is_goal, False, {}

    def render(self) -> str | UInt8[np.ndarray, "H W 3"] | None:  # pyright: ignore
        """The maze as text or as a picture; a window is drawn anew at every step by itself."""
        if self.render_mode == "ansi":
            return draw(self.layout, self.position, self.trap)
        if self.render_mode == "rgb_array":
            return self._picture()
        return None

    def close(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None

    def _check_layout(self, layout: Any) -> Layout:
        """The layout that is given for an episode."""
        if self.config.observation == "features":
            raise EngramError(
                "Image features are those of one maze: give it as the argument maze, or choose "
                "observation image or position."
            )
        return check_layout(layout, self.config.size)

    def _check_trap(self, trap: Any) -> tuple[int, int]:
        """The position of the trap that is given for an episode."""
        if not self.config.trap:
            raise EngramError(
                "This maze has no trap: make it with trap=True, or leave the option trap out."
            )
        cells = range(self.config.size)
        try:
            x, y = (operator.index(number) for number in trap)
        except (TypeError, ValueError):
            x = y = -1
        if x not in cells or y not in cells or (x, y) in ((0, 0), self.config.goal):
            raise EngramError(
                f"The trap cannot be at {trap!r}: give x and y from 0 to {len(cells) - 1}, of a "
                "cell other than start and goal."
            )
        return x, y

    def _reward_here(self) -> float:
        if self.position == self.trap:
            return constants.TRAP_REWARD
        is_goal = self.position == self.config.goal
        return constants.GOAL_REWARD if is_goal else self.config.step_reward

    def _observe(self) -> np.ndarray:
        if self.config.observation == "image":
            return draw_image(self.config, self.layout, self.position, self.trap)
        parts = [np.array([*self.position, *(self.trap or ())], np.float32)]
        if self._features is not None:
            keep = 1 - self.config.dropout_rate
            features = self._features[self.position]
            mask = self.np_random.random(features.shape) < keep
            parts.append(np.where(mask, features / keep, 0))
        return np.concatenate(parts, dtype=np.float32)

    def _picture(self) -> UInt8[np.ndarray, "H W 3"]:
        return draw_picture(self.layout, self.position, self.trap, self.path, self.values)

    def _show(self) -> None:
        """Draws the window, if there is one to be."""
        if self.render_mode != "human":
            return
        from engram.envs.window import Window

        if self._window is None:
            self._window = Window(f"Maze {self.config.size} x {self.config.size}")
        self._window.show(self._picture(), self.metadata["render_fps"])


def make_config(arguments: dict[str, Any]) -> MazeConfig:
    """The configuration of arguments by name."""
    names = MazeConfig.__dataclass_fields__
    if unknown := [name for name in arguments if name not in names]:
        raise EngramError(
            f"A maze has no argument {unknown[0]!r}.{nearest_names(str(unknown[0]), names)}"
        )
    config = MazeConfig(**arguments)
    if config.is_drawn and "size" in arguments:
        config.check_size_of_drawing(arguments["size"])  # also of the default size
    return config


def _check_options(options: Any) -> dict[str, Any]:
    """The options of a reset, if they are known ones."""
    if not isinstance(options, dict):
        raise EngramError(f"The options of reset must be a dictionary, not {options!r}.")
    if unknown := [name for name in options if name not in RESET_OPTIONS]:
        hint = nearest_names(str(unknown[0]), RESET_OPTIONS)
        raise EngramError(f"reset has no option {unknown[0]!r}.{hint}")
    return options


def observation_space(config: MazeConfig) -> spaces.Box:
    """The space of what an agent observes."""
    if config.observation == "image":
        return spaces.Box(0, 255, config.image_shape, np.uint8)
    low = np.zeros(4 if config.trap else 2, np.float32)
    high = np.full_like(low, config.size - 1)
    if config.observation == "features":
        low = np.concatenate([low, np.zeros(constants.NUM_FEATURES, np.float32)])  # after a ReLU
        high = np.concatenate([high, np.full(constants.NUM_FEATURES, np.inf, np.float32)])
    return spaces.Box(low, high, dtype=np.float32)


def register() -> None:
    """Makes `engram/Maze-v0` known to Gymnasium."""
    if ENV_ID not in gym.registry:
        gym.register(
            ENV_ID,
            entry_point="engram.envs.maze.gym_env:MazeEnv",
            max_episode_steps=constants.MAX_EPISODE_STEPS,
        )

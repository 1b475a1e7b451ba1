"""The 57 Atari games in ALE's vector environment, which skips, scales and stacks frames in C++."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing import cpu_count
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from engram.errors import EngramError

GAMES = (
    *("alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank_heist"),
    *("battle_zone", "beam_rider", "berzerk", "bowling", "boxing", "breakout", "centipede"),
    *("chopper_command", "crazy_climber", "defender", "demon_attack", "double_dunk", "enduro"),
    *("fishing_derby", "freeway", "frostbite", "gopher", "gravitar", "hero", "ice_hockey"),
    *("jamesbond", "kangaroo", "krull", "kung_fu_master", "montezuma_revenge", "ms_pacman"),
    *("name_this_game", "phoenix", "pitfall", "pong", "private_eye", "qbert", "riverraid"),
    *("road_runner", "robotank", "seaquest", "skiing", "solaris", "space_invaders"),
    *("star_gunner", "surround", "tennis", "time_pilot", "tutankham", "up_n_down", "venture"),
    *("video_pinball", "wizard_of_wor", "yars_revenge", "zaxxon"),
)
FRAME_SKIP = 4
"""emulator frames per agent step"""
FRAME_STACK = 4
"""frames per observation"""
FRAME_SIZE = 84
"""height and width of a frame in pixels"""
NOOP_MAX = 30
"""largest number of no-op actions at the start of a game"""
MAX_FRAMES = 108_000
"""emulator frames after which a game is truncated"""


@dataclass(frozen=True)
class Protocol:
    """How a game is played in training and evaluation."""

    description: str
    repeat_action_probability: float
    """sticky actions: probability that the emulator repeats the last action"""
    terminal_on_life_loss: bool
    """whether the loss of a life ends a training episode; the game continues"""
    eval_epsilon: float
    """probability of a random action in evaluation"""


PROTOCOLS = {
    "classic": Protocol(
        "no sticky actions, a lost life ends a training episode, as in the paper's code",
        repeat_action_probability=0.0,
        terminal_on_life_loss=True,
        eval_epsilon=0.05,
    ),
    "modern": Protocol(
        "sticky actions with probability 0.25, episodes are whole games",
        repeat_action_probability=0.25,
        terminal_on_life_loss=False,
        eval_epsilon=0.001,
    ),
}


@dataclass(frozen=True)
class AtariGame:
    """A game and its protocol; rewards are not clipped here, so that returns are game scores."""

    game: str
    protocol: Protocol

    def make_vec(self, num_envs: int, num_threads: int = 1, same_step_reset: bool = True) -> Any:
        """ALE's vector environment.

        With `same_step_reset`, the step that ends a game also resets it: about 100 emulator frames,
        which the other environments do not wait for.
        """
        reset_mode = AutoresetMode.SAME_STEP if same_step_reset else AutoresetMode.NEXT_STEP
        # Every default of ALE is set here.
        return _vector_env_class()(
            self.game,
            num_envs,
            num_threads=min(num_envs, num_threads),
            max_num_frames_per_episode=MAX_FRAMES,
            repeat_action_probability=self.protocol.repeat_action_probability,
            img_height=FRAME_SIZE,
            img_width=FRAME_SIZE,
            stack_num=FRAME_STACK,
            frameskip=FRAME_SKIP,
            noop_max=NOOP_MAX,
            reward_clipping=False,
            use_fire_reset=False,
            episodic_life=False,
            autoreset_mode=reset_mode,
        )

    def num_actions(self) -> int:
        """Size of the game's minimal action set."""
        return _num_actions(self.game)


class AtariEnv(gym.Env):
    """A Gymnasium environment whose episodes are whole games; renders the last frame."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60 // FRAME_SKIP}  # noqa: RUF012

    def __init__(self, game: AtariGame, render_mode: str | None = None):
        self.vec_env = game.make_vec(1, same_step_reset=False)
        self.render_mode = render_mode
        self.observation_space = self.vec_env.single_observation_space
        self.action_space = spaces.Discrete(int(self.vec_env.single_action_space.n))
        self.frame = np.zeros((FRAME_SIZE, FRAME_SIZE), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        seeds = np.array([self.np_random.integers(2**31 - 1)])
        observation, info = self.vec_env.reset(seed=seeds)
        self.frame = observation[0, -1].copy()
        return observation[0].copy(), _first_info(info)

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = self.vec_env.step(np.array([action]))
        self.frame = observation[0, -1].copy()
        return (
            observation[0].copy(),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            _first_info(info),
        )

    def render(self) -> Any:
        doubled = np.repeat(np.repeat(self.frame, 2, axis=0), 2, axis=1)
        return doubled[..., None].repeat(3, axis=-1)


def threads(num_vec_envs: int) -> int:
    """Threads of each of several vector environments: four per processor in all.

    With one per processor, processors would idle once some vector environments have finished;
    more threads than processors had no measurable cost.
    """
    return -(-4 * cpu_count() // num_vec_envs)


def _first_info(info: dict[str, Any]) -> dict[str, int]:
    return {name: int(values[0]) for name, values in info.items()}


@cache
def _num_actions(game: str) -> int:
    return int(AtariGame(game, PROTOCOLS["classic"]).make_vec(1).single_action_space.n)


def _vector_env_class() -> Callable[..., Any]:
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise EngramError(
            f"Atari needs ale-py ({error}): install it with `pip install engram-rl[atari]`."
        ) from error
    return AtariVectorEnv

"""The 57 Atari games, by ALE's own vector environment: several games in C++ threads, frames skipped, scaled and stacked there."""

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
    *("alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank_heist", "battle_zone", "beam_rider", "berzerk", "bowling"),
    *("boxing", "breakout", "centipede", "chopper_command", "crazy_climber", "defender", "demon_attack", "double_dunk", "enduro"),
    *("fishing_derby", "freeway", "frostbite", "gopher", "gravitar", "hero", "ice_hockey", "jamesbond", "kangaroo", "krull"),
    *("kung_fu_master", "montezuma_revenge", "ms_pacman", "name_this_game", "phoenix", "pitfall", "pong", "private_eye", "qbert"),
    *("riverraid", "road_runner", "robotank", "seaquest", "skiing", "solaris", "space_invaders", "star_gunner", "surround", "tennis"),
    *("time_pilot", "tutankham", "up_n_down", "venture", "video_pinball", "wizard_of_wor", "yars_revenge", "zaxxon"),
)
SKIP, STACK, SIDE = 4, 4, 84
"""emulator frames of an agent step, frames of an observation, and pixels of their sides"""
NOOPS, LONGEST = 30, 108_000
"""most actions of doing nothing before a game begins, and most emulator frames of a game"""


@dataclass(frozen=True)
class Protocol:
    """How a game is played while training."""

    about: str
    sticky: float
    """probability that the console repeats the last action instead"""
    life_ends: bool
    """whether the loss of a life ends an episode, while the game goes on"""
    epsilon: float
    """probability of a random action when a trained agent is judged"""


PROTOCOLS = {
    "classic": Protocol("no sticky actions, a lost life ends a training episode, as in the paper's code", 0.0, True, 0.05),
    "modern": Protocol("sticky actions with probability 0.25, episodes are whole games", 0.25, False, 0.001),
}


@dataclass(frozen=True)
class Arcade:
    """A game and how it is played. Rewards are clipped to [-1, 1] for agents that want it; scores never are."""

    game: str
    protocol: Protocol

    def machine(self, count: int, workers: int = 1, goes_on: bool = True) -> Any:
        """So many consoles with the game, in lockstep; where it is over, the next begins in the same step if it `goes_on`: that takes about
        100 frames, while the others step. All that ALE presets otherwise is said here."""
        vector = _vector_env()
        return vector(
            self.game,
            count,
            num_threads=min(count, workers),
            max_num_frames_per_episode=LONGEST,
            repeat_action_probability=self.protocol.sticky,
            img_height=SIDE,
            img_width=SIDE,
            stack_num=STACK,
            frameskip=SKIP,
            noop_max=NOOPS,
            reward_clipping=False,
            use_fire_reset=False,
            episodic_life=False,
            autoreset_mode=AutoresetMode.SAME_STEP if goes_on else AutoresetMode.NEXT_STEP,
        )

    def actions(self) -> int:
        """How many actions make a difference in the game."""
        return _actions(self.game)


def threads(machines: int) -> int:
    """Of each of so many machines: four a processor in all. With one, machines that go on when others are done or given up would leave
    processors idle; that there are more than processors costs nothing that could be measured."""
    return -(-4 * cpu_count() // machines)


@cache
def _actions(game: str) -> int:
    return int(Arcade(game, PROTOCOLS["classic"]).machine(1).single_action_space.n)


class Console(gym.Env):
    """One console as a Gymnasium environment, for playing whole games; it shows the frame that the agent sees."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60 // SKIP}  # noqa: RUF012

    def __init__(self, arcade: Arcade, render_mode: str | None = None):
        self.machine, self.render_mode = arcade.machine(1, goes_on=False), render_mode
        self.observation_space = self.machine.single_observation_space
        self.action_space = spaces.Discrete(int(self.machine.single_action_space.n))
        self.shown = np.zeros((SIDE, SIDE), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        observation, info = self.machine.reset(seed=np.array([self.np_random.integers(2**31 - 1)]))
        self.shown = observation[0, -1].copy()
        return observation[0].copy(), {name: int(values[0]) for name, values in info.items()}

    def step(self, action: Any):
        observation, reward, terminated, truncated, info = self.machine.step(np.array([action]))
        self.shown = observation[0, -1].copy()
        told = {name: int(values[0]) for name, values in info.items()}
        return observation[0].copy(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), told

    def render(self) -> Any:
        return np.repeat(np.repeat(self.shown, 2, axis=0), 2, axis=1)[..., None].repeat(3, axis=-1)


def _vector_env() -> Callable[..., Any]:
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise EngramError(f"Atari needs ale-py ({error}): install it with `pip install engram-rl[atari]`.") from error
    return AtariVectorEnv

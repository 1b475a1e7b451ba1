"""MiniWorld's own room, drawn without a screen.

MiniWorld 2.1.0 and pyglet 1.5.31 are the last of their line. On a machine without a screen pyglet
must be told before it loads OpenGL; the variable PYOPENGL_PLATFORM, of which MiniWorld's pages
speak, is read too late.
"""

import importlib
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gymnasium as gym

from engram.envs.env_checker import one_line
from engram.envs.pickup.config import MAX_EPISODE_STEPS, PickupConfig
from engram.errors import EngramError

ENV_ID = "MiniWorld-PickupObjects-v0"
WINDOW = 240, 180
"""width and height of rendered pictures; walls of bricks make films large"""
VERSION = "2.1.0"
PIP = "pip install miniworld==2.1.0 pyglet==1.5.31"
APT = "apt install libegl1 libgl1 libglu1-mesa libgl1-mesa-dri libfontconfig1"


def make(config: PickupConfig, render_mode: str | None = None) -> gym.Env:
    """MiniWorld's environment; raises if something is missing, with what to install."""
    import_miniworld()
    try:
        with redirect_stdout(None):  # it would tell how many samples per pixel there are
            return gym.make(
                ENV_ID,
                size=config.size,
                num_objs=config.num_objs,
                render_mode=render_mode,
                max_episode_steps=MAX_EPISODE_STEPS,  # it ends there by itself, but does not say so
                window_width=WINDOW[0],
                window_height=WINDOW[1],
                disable_env_checker=True,
            )
    except Exception as error:
        raise EngramError(
            f"MiniWorld cannot draw here ({one_line(error)}): install OpenGL for machines without "
            f"a screen, on Debian and Ubuntu by `{APT}`."
        ) from error


def renderer() -> str:
    """The name of the OpenGL device that draws, once an environment is made."""
    gl_info = importlib.import_module("pyglet.gl.gl_info")
    return gl_info.get_renderer()


def import_miniworld() -> Any:
    """The module, with pyglet set for machines without a screen."""
    try:
        import pyglet

        is_known = pyglet.version.startswith("1.5")
    except Exception as error:
        raise EngramError(f"MiniWorld needs pyglet 1.5 ({one_line(error)}): {PIP}.") from error
    if not is_known:
        raise EngramError(f"MiniWorld needs pyglet 1.5 and not {pyglet.version}: {PIP}.")
    pyglet.options["headless"] = True
    pyglet.options["debug_gl"] = False
    try:
        found = version("miniworld")
    except PackageNotFoundError as error:
        raise EngramError(f"MiniWorld is not installed: {PIP}.") from error
    if found != VERSION:
        raise EngramError(f"MiniWorld must be {VERSION}, and not {found}: {PIP}.")
    try:
        return importlib.import_module("miniworld")
    except ModuleNotFoundError as error:
        raise EngramError(f"MiniWorld cannot be imported ({error}): {PIP}.") from error
    except Exception as error:
        raise EngramError(
            f"MiniWorld finds no OpenGL ({one_line(error)}): on Debian and Ubuntu, `{APT}`."
        ) from error

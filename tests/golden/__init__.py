"""Golden runs: short trainings of every agent, whose every bit a pure renaming must keep."""

import json
import platform
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

import engram

FILE = Path(__file__).parent / "runs.json"


class Blocks(gym.Env):
    """Images of 12 x 12 bytes; the brightest third of the columns names the action to take."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.draw(), {}

    def step(self, action):
        reward = float(action == self.bright)
        self.t += 1
        return self.draw(), reward, self.t >= 20, False, {}

    def draw(self):
        self.bright = int(self.np_random.integers(3))
        image = self.np_random.integers(0, 60, (12, 12, 3)).astype(np.uint8)
        image[:, 4 * self.bright : 4 * self.bright + 4] += 150
        return image


class Row(gym.Env):
    """A dictionary of numbers and a count; actions begin with 2."""

    observation_space = gym.spaces.Dict(
        {"x": gym.spaces.Box(-1, 1, (3,)), "n": gym.spaces.Discrete(4)}
    )
    action_space = gym.spaces.Discrete(2, start=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.draw(), {}

    def step(self, action):
        self.t += 1
        return self.draw(), float(action - 2), False, self.t >= 15, {}

    def draw(self):
        return {
            "x": self.np_random.uniform(-1, 1, 3).astype(np.float32),
            "n": int(self.np_random.integers(4)),
        }


def small(name: str, **options) -> engram.types.Agent:
    return engram.make(name, "debug", **options)


JAX, GYM = "cartpole-gaussian", "gym:Acrobot-v1"
AGENTS = ("random", "dqn", "mbec", "mbec++", "mfec", "nec", "drqn", "ppo")
RUNS: dict[str, Callable[[Path], object]] = {
    **{
        f"{name} jax": lambda out, name=name: engram.train(small(name), JAX, 2, 300, out=out)
        for name in AGENTS
    },
    **{
        f"{name} gym": lambda out, name=name: engram.train(small(name), GYM, 2, 300, out=out)
        for name in AGENTS
    },
    "mbec++ engram": lambda out: engram.train(
        engram.make("mbec++"), "mountaincar-transition", [3, 7], 300, out=out
    ),
    "mbec++ paper": lambda out: engram.train(
        engram.make("mbec++", "paper"), "cartpole-bernoulli", 2, 300, out=out
    ),
    "mbec++ envs": lambda out: engram.train(small("mbec++"), JAX, 2, 400, num_envs=4, out=out),
    "dqn engram": lambda out: engram.train(
        engram.make("dqn", "engram"), "cartpole", 2, 300, out=out, use_gym=True
    ),
    "ppo recurrent": lambda out: engram.train(
        small("ppo", recurrent=True), JAX, 2, 300, num_envs=2, out=out
    ),
    "mbec dictionary": lambda out: engram.train(small("mbec"), Row, 2, 150, out=out),
    **{
        f"{name} images": lambda out, name=name: engram.train(small(name), Blocks, 2, 150, out=out)
        for name in ("dqn", "mbec++", "nec", "drqn")
    },
    "dqn atari": lambda out: engram.train(
        small(
            "dqn", learning_starts=64, train_frequency=16, double_q=True, target_update_interval=400
        ),
        "atari:pong",
        2,
        240,
        num_envs=4,
        out=out,
    ),
    "mbec++ atari": lambda out: engram.train(
        small("mbec++", learning_starts=64, gradient_steps=2, act_with_target=True, chunk=10),
        "atari:pong",
        1,
        240,
        num_envs=4,
        out=out,
    ),
    "nec atari": lambda out: engram.train(
        small("nec", learning_starts=64, train_frequency=32),
        "atari:pong",
        1,
        160,
        num_envs=4,
        out=out,
    ),
    "mfec atari": lambda out: engram.train(
        small("mfec", clip_rewards=False), "atari:pong-modern", 1, 160, num_envs=2, out=out
    ),
}


def run(name: str) -> dict[str, list[str]]:
    """Checksums of a run's last checkpoint and curves, in an order that names do not change."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        RUNS[name](out)
        arrays = [
            part
            for x in load_file(out / "checkpoint" / "state.safetensors").values()
            for part in columns(x)
        ]
        csv = [
            zlib.crc32(line.partition(",")[2].encode())
            for line in (out / "curves.csv").read_text().splitlines()[1:]
        ]
    return {
        "state": sorted(
            f"{x.dtype}{list(x.shape)} {zlib.crc32(np.ascontiguousarray(x).tobytes())}"
            for x in arrays
        ),
        "curves": [str(x) for x in csv],
    }


def columns(x: np.ndarray) -> list[np.ndarray]:
    """Curves of metrics one by one, since names decide their order; any other array as it is."""
    return list(np.moveaxis(x, -1, 0)) if x.dtype == np.float64 and x.ndim == 3 else [x]


def machine() -> dict[str, str]:
    """What decides how numbers round: JAX, the processor's instructions, and LAPACK's bits."""
    x = jax.random.normal(jax.random.key(0), (64, 64))
    products = jax.jit(lambda x: (jnp.tanh(x @ x) @ jnp.exp(x), jnp.linalg.qr(x)))(x)
    bits = b"".join(np.asarray(y).tobytes() for y in jax.tree.leaves(products))
    return {"jax": jax.__version__, "bits": str(zlib.crc32(bits)), "processor": _processor()}


def _processor() -> str:
    """A checksum of the processor's model and instruction sets, as far as Linux tells."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    names = ("model name", "model\t", "flags")
    lines = [line for line in info.read_text().splitlines() if line.startswith(names)]
    return str(zlib.crc32("\n".join(sorted(set(lines))).encode()))


def recorded() -> dict[str, dict]:
    """The checksums in runs.json, and the machine that computed them."""
    return json.loads(FILE.read_text())

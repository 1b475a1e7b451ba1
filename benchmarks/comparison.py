"""One core for everybody: Engram beside Stable-Baselines3 and SBX on Cart Pole, each in its own process, taking turns."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.contenders import Contender, Timing, cores, entry, interleave, speed, steps
from benchmarks.tables import Table, number

ROOT = Path(__file__).parent.parent
PROTOCOL = (
    "Cart Pole, a batch of 32 and an update in every step, networks of 128-128, the target copied every 100 steps, learning "
    "from step 100. Every contender has its own process, pinned to the same core, with one thread; it compiles and warms up "
    "untimed, then all take turns. Speeds are medians over the turns; with a filling memory, the mean over one life of 10,000 "
    "steps. Steps of several runs are added up."
)
DQN = {"hidden": 128, "batch": 32, "target_every": 100, "learn_start": 100}
MBECPP = DQN | {"neighbours": 15, "slots": 3_000}
OTHERS = {
    "learning_rate": 5e-4,
    "batch_size": 32,
    "train_freq": 1,
    "gradient_steps": 1,
    "target_update_interval": 100,
    "learning_starts": 100,
    "buffer_size": 1_000_000,
    "exploration_final_eps": 0.01,
    "policy_kwargs": {"net_arch": [128, 128]},
}
DQNS = [
    Contender("Stable-Baselines3 DQN", options=OTHERS, software="sb3", host=True),
    Contender("SBX DQN", options=OTHERS, software="sbx", host=True),
    Contender("Engram DQN", options=DQN, host=True),
    Contender("Engram DQN", options=DQN, iterations=5_000, replay=50_000),
    Contender("Engram DQN", options=DQN, runs=10, iterations=1_000),
]
OURS = [
    Contender("Engram MBEC++", "mbec++", MBECPP, host=True, memory="filling"),
    Contender("Engram MBEC++", "mbec++", MBECPP, memory="filling"),
    Contender("Engram MBEC++", "mbec++", MBECPP, memory="full"),
    Contender("Engram MBEC++", "mbec++", MBECPP, runs=10, memory="filling"),
    Contender("Engram MBEC++", "mbec++", MBECPP, runs=10, iterations=200, memory="full"),
    Contender("Engram at random", "random", host=True, iterations=5_000),
    Contender("Engram at random", "random", iterations=1_000_000),
]
PACKAGES = ("stable-baselines3", "sb3-contrib", "sbx-rl", "pfrl", "rejax", "memorax", "gymnax<1")
"""what the others are installed from; Rejax and Memorax do not run with Gymnax 1.0"""
ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}


class Worker:
    """The parent's end of a worker process."""

    def __init__(self, contender: Contender, python: str, core: int, stack: ExitStack):
        self.errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        command = [python, "-m", "benchmarks.worker", json.dumps(asdict(contender)), str(core)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, cwd=ROOT, env=os.environ | ONE_THREAD)
        stack.callback(self.close)
        self.versions = self._answer()

    def __call__(self) -> Timing:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return json.loads(line)
        self.errors.seek(0)
        raise RuntimeError((self.errors.read().strip() or "it ended without a word").splitlines()[-1])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(contenders: list[Contender], pythons: Mapping[str, str], quick: bool, say, protocol: str = PROTOCOL) -> dict:
    """`pythons` are those of the software; all that is not named there has that of "others"."""
    rounds = 2 if quick else 10
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    workers, measured = {}, []
    with ExitStack() as stack:
        for contender in (c.quick() if quick else c for c in contenders):
            name = label(asdict(contender))
            say(f"warming up {name}")
            try:
                python = pythons.get(contender.software, pythons["others"])
                workers[name] = contender, Worker(contender, python, core, stack)
            except (OSError, RuntimeError) as error:
                measured.append(asdict(contender) | {"failed": str(error)})
        times = interleave({name: worker for name, (_, worker) in workers.items()}, rounds, say)
    measured += [entry(c, times[name], versions=worker.versions) for name, (c, worker) in workers.items()]
    return {"protocol": protocol, "settings": {"rounds": rounds, "core": core, "environment": ONE_THREAD}, "measured": measured}


def label(measured: dict) -> str:
    size = f"{measured['runs']} runs of {measured['envs']}"
    parts = [measured["algorithm"], measured["name"], environment(measured), size, measured["memory"]]
    return ", ".join(part for part in parts if part)


def environment(measured: dict) -> str:
    return "Gymnasium" if measured["host"] else "JAX"


def spread(measured: dict) -> str:
    slowest, fastest = (number(steps(measured) / seconds) for seconds in (max(measured["wall"]), min(measured["wall"])))
    return f"{slowest} to {fastest}"


def tables(result: dict) -> list[Table]:
    rivals = {m["software"]: speed(m) for m in result["measured"] if m["software"] != "engram" and "wall" in m}

    def row(m: dict) -> list[str]:
        who = [m["name"], environment(m), str(m["runs"]), m["memory"] or "-"]
        if "failed" in m:
            return [*who, "not measured: " + m["failed"], "", "", "", ""]
        learns = m["software"] == "engram" and m["agent"] != "random"
        ratios = [f"{speed(m) / rivals[r]:.1f}" if r in rivals and learns else "-" for r in ("sb3", "sbx")]
        return [*who, number(speed(m)), spread(m), *ratios, f"{cores(m):.2f}"]

    columns = [
        "",
        "environment",
        "runs",
        "memory",
        "steps/s",
        "slowest to fastest turn",
        "times SB3",
        "times SBX",
        "cores used",
    ]
    versions = {name: v for m in result["measured"] if m["software"] != "engram" for name, v in m.get("versions", {}).items()}
    note = "SB3 and SBX: " + ", ".join(f"{name} {v}" for name, v in versions.items()) if versions else ""
    return [Table("One core: training on Cart Pole", columns, [row(m) for m in result["measured"]], result["protocol"], note)]


def find_pythons(others: str | None, coach: str | None, say) -> dict[str, str]:
    """The Pythons of the software: those given; for the others that of `.venv-bench`, made here where it is missing."""
    given = {"engram": sys.executable} | ({"coach": coach} if coach else {})
    if others is not None:
        return given | {"others": others}
    home = ROOT / ".venv-bench"
    ready = home / "ready"
    if not ready.exists() or ready.read_text() != str(PACKAGES):
        say(f"making .venv-bench for {', '.join(PACKAGES)}")
        install = [str(home / "bin/python"), "-m", "pip", "install", "--quiet"]
        cpu = ["--index-url", "https://download.pytorch.org/whl/cpu"] if sys.platform == "linux" else []
        try:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            (home / ".gitignore").write_text("*\n")
            subprocess.run([*install, "torch", *cpu], check=True)  # first: else pip would take the one with CUDA, of gigabytes
            subprocess.run([*install, *PACKAGES], check=True)
            ready.write_text(str(PACKAGES))
        except subprocess.CalledProcessError as error:
            say(f"could not make .venv-bench ({error}); the others will be missing")
    return given | {"others": str(home / "bin/python")}

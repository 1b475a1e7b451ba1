"""Part `agents`: every agent on Cart Pole, on a CPU next to the fastest other software we found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from benchmarks import comparison, scaling, settings
from benchmarks.contenders import Contender, speed
from benchmarks.options import Options
from benchmarks.others import find_pythons
from benchmarks.tables import (
    Table,
    cells,
    cores_used,
    environment,
    number,
    spread,
    steps_per_second,
)

TASK = (
    "Cart Pole. Value-based agents learn from step 100, in every step except DRQN (every second) "
    "and NEC (every fourth). PPO learns from rollouts of 256 steps of all its environments, with "
    "ten epochs of four minibatches. "
)
ONE_CORE_PROTOCOL = (
    TASK + "Each contender has its own process, pinned to the same core, with one thread. "
    "Compilation and warm-up are not timed. Then all of one algorithm are measured in turn. Speeds "
    "are medians over the turns; with a filling memory, the mean over the first 10,000 steps. "
    "Steps are summed over runs and environments. Ratios are to the same number of runs, or to one "
    "run of software that trains only one."
)
DEVICE_PROTOCOL = TASK + scaling.GPU_PROTOCOL
MAX_DEVICE_ITERATIONS = 1_024
"""per call, except on a CPU: each iteration launches many kernels, one after another"""
NAMES = {
    "sb3": "SB3",
    "sbx": "SBX",
    "sb3-contrib": "SB3 contrib",
    "pfrl": "PFRL",
    "rejax": "Rejax",
    "memorax": "Memorax",
    "coach": "Coach",
}
JAX_SOFTWARE = ("rejax", "memorax")
"""other software that steps Cart Pole in JAX"""


def engram_contenders(run_counts: Sequence[int]) -> list[Contender]:
    """Engram's agents: one run on Gymnasium's environment, and so many runs in JAX."""
    return [
        *_agent("Random", {}, run_counts, 5_000, 1_000_000),
        *_agent("DQN", settings.DQN, run_counts, 1_000, 5_000),
        *_memory_agent("MBEC", settings.MBEC, run_counts),
        *_memory_agent("MBEC++", settings.MBECPP, run_counts),
        *_memory_agent("MFEC", settings.MFEC, run_counts),
        *_memory_agent("NEC", settings.NEC, run_counts),
        *_agent("DRQN", settings.DRQN, run_counts, 512, 1_000),
        *_agent("PPO", settings.PPO, run_counts, 2_048, 8_192),
        *_agent("PPO", settings.PPO, run_counts, 256, 1_024, envs=8),
        *_agent("PPO, LSTM", settings.PPO_LSTM, run_counts, 2_048, 4_096),
        *_agent("PPO, LSTM", settings.PPO_LSTM, run_counts, 256, 512, envs=8),
    ]


def _agent(
    algorithm: str,
    options: dict,
    run_counts: Sequence[int],
    gym_iterations: int,
    jax_iterations: int,
    memory: str = "",
    **fields: Any,
) -> list[Contender]:
    """An agent on Gymnasium's environment, unless `gym_iterations` is 0, and in JAX.

    Many runs get an eighth of the iterations, but at least 256 if one run has as many. With a
    filling memory they get all, so that all turns together have 10,000.
    """
    name = algorithm.split(",")[0].lower()
    base = Contender("Engram", name, options, algorithm=algorithm, memory=memory, **fields)
    many_iterations = max(jax_iterations // 8, min(jax_iterations, 256))
    if memory == "filling":
        many_iterations = jax_iterations
    in_jax = [
        replace(base, runs=runs, iterations=jax_iterations if runs == 1 else many_iterations)
        for runs in run_counts
    ]
    if not gym_iterations:
        return in_jax
    return [replace(base, host=True, iterations=gym_iterations), *in_jax]


def _memory_agent(algorithm: str, options: dict, run_counts: Sequence[int]) -> list[Contender]:
    """An agent with a memory that fills, and with one that is full and evicts."""
    return [
        *_agent(algorithm, options, run_counts, 1_000, 1_000, memory="filling"),
        *_agent(algorithm, options, run_counts, 0, 1_000, memory="full", replay=50_000),
    ]


def other_contenders() -> list[Contender]:
    """Other software, each with Engram's settings in its own words."""
    return [
        _other("DQN", "sb3", "dqn", settings.SB3_DQN, 1_000),
        _other("DQN", "sbx", "dqn", settings.SB3_DQN, 1_000),
        _other("DQN", "rejax", "dqn", settings.REJAX_DQN, 2_000),
        _other("DQN", "rejax", "dqn", settings.REJAX_DQN, 500, runs=10),
        _other("NEC", "coach", "nec", settings.COACH_NEC, 1_000, memory="filling"),
        _other("NEC", "coach", "nec", settings.COACH_NEC, 256, memory="full", replay=50_000),
        _other("DRQN", "pfrl", "drqn", settings.PFRL_DRQN, 512),
        _other("DRQN", "memorax", "dqn", settings.MEMORAX_DRQN, 512),
        _other("DRQN", "memorax", "dqn", settings.MEMORAX_DRQN, 256, runs=10),
        *(contender for envs in (1, 8) for contender in _other_ppo(envs)),
        _other("PPO, LSTM", "memorax", "ppo", settings.MEMORAX_PPO_LSTM, 512, envs=8),
        _other("PPO, LSTM", "memorax", "ppo", settings.MEMORAX_PPO_LSTM, 256, envs=8, runs=10),
    ]


def _other_ppo(envs: int) -> list[Contender]:
    """PPO of software whose rollouts are counted in steps per environment."""
    n_steps = {"n_steps": settings.ROLLOUT // envs}
    sb3, sb3_lstm = settings.SB3_PPO | n_steps, settings.SB3_PPO_LSTM | n_steps
    rejax = settings.REJAX_PPO | {"num_steps": settings.ROLLOUT // envs}
    return [
        _other("PPO", "sb3", "ppo", sb3, 2_048 // envs, envs=envs),
        _other("PPO", "sbx", "ppo", sb3, 2_048 // envs, envs=envs),
        _other("PPO", "rejax", "ppo", rejax, 8_192 // envs, envs=envs),
        _other("PPO", "rejax", "ppo", rejax, 2_048 // envs, envs=envs, runs=10),
        _other("PPO, LSTM", "sb3-contrib", "ppo", sb3_lstm, 2_048 // envs, envs=envs),
    ]


def _other(
    algorithm: str,
    software: str,
    agent: str,
    options: dict,
    iterations: int,
    memory: str = "",
    **fields: Any,
) -> Contender:
    return Contender(
        NAMES[software],
        agent,
        options,
        software,
        algorithm,
        iterations=iterations,
        memory=memory,
        host=software not in JAX_SOFTWARE,
        **fields,
    )


def measure(options: Options) -> dict:
    """On a CPU one core next to other software; on other devices Engram alone with more runs."""
    is_cpu = jax.default_backend() == "cpu"
    algorithms = list(dict.fromkeys(c.algorithm for c in engram_contenders([1])))
    if options.only:
        algorithms = [name for name in algorithms if _is_named(name, options.only)]
    if not algorithms:
        raise SystemExit(f"There is no agent {' or '.join(options.only)} to measure.")
    if is_cpu:
        contenders = other_contenders() + engram_contenders([1, 10])
        pythons = find_pythons(options)
    else:
        contenders = [
            replace(c, iterations=min(c.iterations, MAX_DEVICE_ITERATIONS))
            for c in engram_contenders([1, 10, 100])
        ]
        pythons = {}
    measured, result = [], {}
    for algorithm in algorithms:  # one after another, since memory would not suffice for all
        group = [c for c in contenders if c.algorithm == algorithm]
        if is_cpu:
            result = comparison.measure(group, pythons, ONE_CORE_PROTOCOL, options)
        else:
            result = scaling.measure(group, DEVICE_PROTOCOL, 10, options)
        measured += result["measured"]
    return result | {"device": jax.devices()[0].device_kind, "measured": measured}


def _is_named(algorithm: str, names: Sequence[str]) -> bool:
    """Whether an algorithm is among these lower-case names; `ppo` is also PPO with an LSTM."""
    name = algorithm.lower()
    return name in names or name.split(",")[0] in names


def tables(result: dict) -> list[Table]:
    columns = [
        *("agent", "by", "environment", "environments", "runs", "memory"),
        *("steps/s", "slowest to fastest turn", "times the others", "cores used"),
    ]
    rivals = [m for m in result["measured"] if m["software"] != "engram"]
    timed_rivals = [m for m in rivals if "wall" in m]
    rows = [_row(m, timed_rivals) for m in result["measured"]]
    place = "one core" if result["device"] == "cpu" else result["device"]
    title = f"All agents: training on Cart Pole, {place}"
    versions = _format_versions(timed_rivals)
    note = versions and f"The others: {versions}"
    return [Table(title, columns, rows, result["protocol"], note)]


def _format_versions(measured: Sequence[dict]) -> str:
    """The versions of all packages, by Python."""
    by_python: dict[str, dict[str, str]] = {}
    for m in measured:
        by_python.setdefault(m["versions"]["python"], {}).update(m["versions"])
    lists = (versions.items() for versions in by_python.values())
    return "; ".join(", ".join(f"{name} {v}" for name, v in versions) for versions in lists)


def _row(m: dict, rivals: Sequence[dict]) -> list[str]:
    def ratios(m: dict) -> str:
        speeds = _rival_speeds(m, rivals).items()
        # Two significant digits.
        rounded = ((name, float(f"{speed(m) / other:.2g}")) for name, other in speeds)
        return ", ".join(f"{name} {number(ratio)}" for name, ratio in rounded) or "-"

    return [
        *(m["algorithm"], m["name"], environment(m)),
        *(str(m["envs"]), str(m["runs"]), m["memory"] or "-"),
        *cells(m, steps_per_second, spread, ratios, cores_used),
    ]


def _rival_speeds(m: dict, rivals: Sequence[dict]) -> dict[str, float]:
    """The speeds that a measurement of Engram is compared with, by name of the software.

    Of as many runs or, where that was not measured, of one. Software that steps the environment in
    JAX is not compared with Engram on Gymnasium's environment.
    """
    if m["software"] != "engram":
        return {}
    keys = "algorithm", "envs", "memory"
    same = [
        r
        for r in rivals
        if all(r[key] == m[key] for key in keys)
        and r["runs"] in (1, m["runs"])
        and (r["host"] or not m["host"])
    ]
    # Those of as many runs come last and replace those of one.
    return {r["name"]: speed(r) for r in sorted(same, key=lambda r: r["runs"])}

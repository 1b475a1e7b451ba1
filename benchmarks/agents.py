"""Every agent on Cart Pole, at one run and at many, beside the fastest others of its kind that can be installed."""

import argparse
from dataclasses import replace

import jax

from benchmarks import comparison, scaling
from benchmarks.comparison import DQN, MBECPP, OTHERS, environment, spread
from benchmarks.contenders import Contender, cores, speed
from benchmarks.tables import Table, number

WORK = (
    "Cart Pole. Value-based agents learn from step 100, in every step but for DRQN (every second) and NEC (every fourth); PPO from "
    "rollouts of 256 steps of all its environments together, ten times, in four minibatches. "
)
ONE_CORE = (
    WORK + "Every contender has its own process, pinned to the same core, with one thread; it compiles and warms up untimed, then all of "
    "one algorithm take turns. Speeds are medians over the turns; with a filling memory, the mean over one life of 10,000 steps. Steps of "
    "several runs and environments are added up. Ratios are to the same number of runs, or to one run of what has no more."
)
DEVICE = WORK + scaling.GPU
MFEC = {"neighbours": 11, "slots": 10_000}
NEC = {"hidden": 64, "embedding": 64, "batch": 32, "learn_every": 4, "learn_start": 100, "neighbours": 50, "slots": 10_000, "horizon": 100}
DRQN = {"hidden": 128, "lstm": 128, "batch": 16, "sequence": 8, "learn_every": 2, "learn_start": 100, "target_every": 100}
ROLLOUT = 256
PPO = {"hidden": 64, "rollout": ROLLOUT, "epochs": 10, "minibatches": 4, "learning_rate": 1e-3, "anneal": False}
LSTM = PPO | {"recurrent": True, "lstm": 64, "sequence": 32}
LAUNCHES = 1_024
"""iterations of a call, at most, where each costs a row of kernel launches"""
NAMES = {"sb3": "SB3", "sbx": "SBX", "sb3-contrib": "SB3 contrib", "pfrl": "PFRL", "rejax": "Rejax", "memorax": "Memorax", "coach": "Coach"}


def ours(runs: tuple[int, ...]) -> list[Contender]:
    """Ours, on Gymnasium's environment with one run, on ours in JAX with as many as asked for."""

    def agent(algorithm: str, options: dict, host: int, one: int, name: str = "", **more) -> list[Contender]:
        """`host` and `one` are iterations of a call, on Gymnasium and of one run in JAX; of more runs an eighth is enough."""
        base = Contender("Engram", name or algorithm.lower(), options, algorithm=algorithm, **more)
        every = [
            replace(base, runs=r, iterations=one if more.get("memory") == "filling" else max(one // (8 if r > 1 else 1), min(one, 256))) for r in runs
        ]
        return [replace(base, host=True, iterations=host)] * bool(host) + every

    def episodic(algorithm: str, options: dict) -> list[Contender]:
        """With a memory that fills over one life, and with one that is full and must forget."""
        full = agent(algorithm, options, 0, 1_000, memory="full", replay=50_000)
        return agent(algorithm, options, 1_000, 1_000, memory="filling") + full

    def policy(algorithm: str, options: dict, host: int, one: int) -> list[Contender]:
        return [c for e in (1, 8) for c in agent(algorithm, options, host // e, one // e, name="ppo", envs=e)]

    mbec = {name: MBECPP[name] for name in ("batch", "learn_start", "neighbours", "slots")}
    return [
        *agent("Random", {}, 5_000, 1_000_000),
        *agent("DQN", DQN, 1_000, 5_000),
        *episodic("MBEC", mbec),
        *episodic("MBEC++", MBECPP),
        *episodic("MFEC", MFEC),
        *episodic("NEC", NEC),
        *agent("DRQN", DRQN, 512, 1_000),
        *policy("PPO", PPO, 2_048, 8_192),
        *policy("PPO, LSTM", LSTM, 2_048, 4_096),
    ]


def theirs() -> list[Contender]:
    """Theirs, each with the settings of ours in its own words."""

    def rival(algorithm: str, software: str, agent: str, options: dict, iterations: int, **more) -> Contender:
        host = software not in ("rejax", "memorax")
        return Contender(NAMES[software], agent, options, software, algorithm, iterations=iterations, host=host, **more)

    torch_ppo = {"n_epochs": 10, "batch_size": ROLLOUT // 4, "learning_rate": 1e-3, "ent_coef": 0.01, "max_grad_norm": 0.5}
    torch_lstm = torch_ppo | {"policy_kwargs": {"lstm_hidden_size": 64, "net_arch": {"pi": [64], "vf": [64]}}}
    rejax_dqn = {"hidden": [128, 128], "learning_rate": 5e-4, "batch_size": 32, "fill_buffer": 100, "buffer_size": 10_000}
    rejax_dqn |= {"target_update_freq": 100, "num_epochs": 1, "ddqn": False}
    rejax_ppo = {"hidden": [64, 64], "learning_rate": 1e-3, "num_epochs": 10, "num_minibatches": 4, "max_grad_norm": 0.5}
    memorax_drqn = {"hidden": 128, "lstm": 128, "sequence": 8, "learning_rate": 5e-4, "clip": 10.0, "batch_size": 16, "buffer_size": 10_000}
    memorax_drqn |= {"tau": 1.0, "target_network_frequency": 100, "train_frequency": 2, "learning_starts": 100}
    memorax_drqn |= {"start_e": 1.0, "end_e": 0.01, "exploration_fraction": 0.1}
    memorax_lstm = {"hidden": 64, "lstm": 64, "sequence": 32, "learning_rate": 1e-3, "clip": 0.5, "num_minibatches": 4, "update_epochs": 10}
    memorax_lstm |= {
        "gae_lambda": 0.95,
        "normalize_advantage": True,
        "clip_coef": 0.2,
        "clip_vloss": False,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
    }
    coach = NEC | {"learning_rate": 5e-4}
    return [
        rival("DQN", "sb3", "dqn", OTHERS, 1_000),
        rival("DQN", "sbx", "dqn", OTHERS, 1_000),
        rival("DQN", "rejax", "dqn", rejax_dqn, 2_000),
        rival("DQN", "rejax", "dqn", rejax_dqn, 500, runs=10),
        rival("NEC", "coach", "nec", coach, 1_000, memory="filling"),
        rival("NEC", "coach", "nec", coach, 256, memory="full", replay=50_000),
        rival("DRQN", "pfrl", "drqn", DRQN | {"replay": 10_000, "learning_rate": 5e-4}, 512),
        rival("DRQN", "memorax", "dqn", memorax_drqn, 512),
        rival("DRQN", "memorax", "dqn", memorax_drqn, 256, runs=10),
        *(rival("PPO", s, "ppo", torch_ppo | {"n_steps": ROLLOUT // e}, 2_048 // e, envs=e) for e in (1, 8) for s in ("sb3", "sbx")),
        *(
            rival("PPO", "rejax", "ppo", rejax_ppo | {"num_steps": ROLLOUT // e}, 8_192 // e // (4 if r > 1 else 1), envs=e, runs=r)
            for e in (1, 8)
            for r in (1, 10)
        ),
        *(rival("PPO, LSTM", "sb3-contrib", "ppo", torch_lstm | {"n_steps": ROLLOUT // e}, 2_048 // e, envs=e) for e in (1, 8)),
        rival("PPO, LSTM", "memorax", "ppo", memorax_lstm, 512, envs=8),
        rival("PPO, LSTM", "memorax", "ppo", memorax_lstm, 256, envs=8, runs=10),
    ]


def measure(options: argparse.Namespace, say) -> dict:
    """On a CPU, one core beside the others; on any other device, ours alone and more runs of them."""
    alone = jax.default_backend() != "cpu"
    contenders = [replace(c, iterations=min(c.iterations, LAUNCHES)) for c in ours((1, 10, 100))] if alone else theirs() + ours((1, 10))
    algorithms = list(dict.fromkeys(c.algorithm for c in ours((1,))))
    if options.only:
        algorithms = [a for a in algorithms if {a.lower(), a.split(",")[0].lower()} & {name.lower() for name in options.only}]
    pythons = None if alone else comparison.find_pythons(options.others_python, options.coach_python, say)
    measured, result = [], {}
    for algorithm in algorithms:  # one after the other: there is no room for all of them at once
        group = [c for c in contenders if c.algorithm == algorithm]
        if pythons is None:
            result = scaling.measure(group, DEVICE, 10, options.quick, say)
        else:
            result = comparison.measure(group, pythons, options.quick, say, ONE_CORE)
        measured += result["measured"]
    return result | {"device": jax.devices()[0].device_kind, "measured": measured}


def tables(result: dict) -> list[Table]:
    columns = [
        "agent",
        "by",
        "environment",
        "environments",
        "runs",
        "memory",
        "steps/s",
        "slowest to fastest turn",
        "times the others",
        "cores used",
    ]
    rows = [_row(m, [r for r in result["measured"] if r["software"] != "engram" and "wall" in r]) for m in result["measured"]]
    versions: dict[str, dict] = {}
    for m in result["measured"]:
        if m["software"] != "engram" and "versions" in m:
            versions.setdefault(m["versions"]["python"], {}).update(m["versions"])
    note = "; ".join(", ".join(f"{name} {v}" for name, v in found.items()) for found in versions.values())
    place = "one core" if result["device"] == "cpu" else result["device"]
    return [Table(f"All agents: training on Cart Pole, {place}", columns, rows, result["protocol"], note and f"The others: {note}")]


def _row(m: dict, rivals: list[dict]) -> list[str]:
    who = [m["algorithm"], m["name"], environment(m), str(m["envs"]), str(m["runs"]), m["memory"] or "-"]
    ratios = [f"{name} {number(float(f'{speed(m) / other:.2g}'))}" for name, other in _beside(m, rivals).items()]
    figures = scaling.steps_a_second, spread, lambda m: ", ".join(ratios) or "-", lambda m: f"{cores(m):.2f}"
    return [*who, *scaling.cells(m, *figures)]


def _beside(m: dict, rivals: list[dict]) -> dict[str, float]:
    """The speed of every rival of one of ours: of as many runs or, where that was not measured, of one. What is all in JAX is no rival
    to what steps Gymnasium's environment."""
    found: dict[str, float] = {}
    if m["software"] == "engram" and "wall" in m:
        same = [r for r in rivals if all(r[key] == m[key] for key in ("algorithm", "envs", "memory"))]
        for r in sorted(same, key=lambda r: r["runs"]):
            if r["runs"] in (1, m["runs"]) and (r["host"] or not m["host"]):
                found[r["name"]] = speed(r)
    return found

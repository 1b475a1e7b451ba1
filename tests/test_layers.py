"""Each layer imports only those above it."""

import ast
from pathlib import Path

import pytest

import engram

ROOT = Path(engram.__file__).parent
LAYERS = [
    "errors",
    "options",
    "types",
    "devices",
    "native",
    "gpu",
    "nearest",
    "memory",
    "replay",
    "returns",
    "schedule",
    "vision",
    "networks",
    "models",
    "standard",
    "waiting",
    "tables",
    "vae",
    "episodic",
    "agents.shared",
    "agents.random",
    "agents.dqn",
    "agents.mbec",
    "agents.mbecpp",
    "agents.mfec",
    "agents.nec",
    "agents.drqn",
    "agents.ppo",
    "agents",
    "tasks.atari",
    "tasks.checks",
    "tasks.classic",
    "tasks.noise",
    "tasks.registry",
    "tasks",
    "loop.program",
    "loop.scan",
    "loop.packing",
    "loop.host",
    "loop.consoles",
    "loop.games",
    "loop",
    "records",
    "provenance",
    "report.statistics",
    "report.figures",
    "report.video",
    "report",
    "policy",
    "evaluation",
    "scores",
    "training",
    "events",
    "report.page",
    "experiments.running",
    "experiments.foretelling",
    "experiments.lines",
    "experiments.verdicts",
    "experiments.experiment",
    "experiments.apart",
    "experiments.control",
    "experiments.convergence",
    "experiments.mathematics",
    "experiments.parameters",
    "experiments.space",
    "experiments.scoreboard",
    "experiments.pace",
    "experiments.validation",
    "experiments.campaign",
    "experiments.atari",
    "experiments.catalogue",
    "experiments.reporting",
    "experiments",
    "screen",
    "cli",
]
"""of design.md's list, with what was added to it; modules not named here stand below all of these"""


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text, known):
    """The modules of Engram that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "engram":
                inner = name.removeprefix("engram").removeprefix(".")
                yield inner if inner in known else inner.rpartition(".")[0]


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def rank(name):
    if name in LAYERS:
        return LAYERS.index(name)
    return len(LAYERS) if name else len(LAYERS) + 1  # the package itself gathers them all


@pytest.mark.parametrize("name", [name for name in MODULES if name in LAYERS])
def test_a_layer_imports_only_those_above_it(name):
    for other in imported(MODULES[name].read_text(encoding="utf-8"), MODULES):
        assert other in MODULES, f"{name} imports {other}, which is no module"
        assert rank(other) < rank(name), f"{name} must not import {other}"


def test_every_layer_exists():
    assert set(LAYERS) <= set(MODULES)


def test_an_import_from_below_would_be_seen():
    text = "def f():\n    from engram.training import train\n    from engram import loop\n    import engram.records as r\n"
    assert set(imported(text, MODULES)) == {"training", "loop", "records"}


def test_nothing_below_records_but_records_touches_files():
    """No logging, files or plots in the layers before `records`."""
    for name in LAYERS[LAYERS.index("nearest") : LAYERS.index("records")]:
        for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                roots = {a.name.split(".")[0] for a in node.names} if isinstance(node, ast.Import) else {node.module.split(".")[0]}
                assert not roots & {"logging", "pathlib", "os", "io", "json", "csv", "matplotlib"}, name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"open", "print"}, name

"""Each module imports only modules above it in this list."""

import ast
import builtins
import dis
import importlib
from pathlib import Path
from types import CodeType

import pytest

import engram

ROOT = Path(engram.__file__).parent
ROOMS = [
    "errors config types devices imports user_cache pytrees periodic batching",
    "episodic.knn.cpp episodic.knn.pallas episodic.knn.portable episodic.knn",
    "encoders heads networks optim targets running_stats vae replay_buffer",
    "episodic episodic.memory episodic.accumulator episodic.dnd",
    "episodic.trajectory_model episodic.features episodic.consolidation",
    "episodic.control episodic.model_training episodic.image_encoder episodic.reencoding",
    "agents.presets agents.common agents.resets agents.random agents.dqn agents.drqn",
    "agents.ppo agents.mfec agents.nec agents.mbec agents.mbecpp agents",
    "envs.spaces envs.atari envs.env_checker envs.classic_control envs.task envs.wrappers",
    "envs.maze envs.maze.layout envs.maze.config envs.maze.weight_files envs.maze.pretrained",
    "envs.maze.image_features",
    "envs.window envs.maze.render envs.maze.gym_env envs.maze.jax_env envs.maze.tasks",
    "envs.pickup envs.pickup.config envs.pickup.shapes envs.pickup.walls",
    "envs.pickup.ray_caster envs.pickup.jax_env envs.pickup.top_view envs.pickup.gym_env",
    "envs.pickup.miniworld envs.pickup.tasks",
    "envs.registry envs",
    "runners.base runners.parallel runners.donation runners.device_agent",
    "runners.autoreset runners.jax_env runners.gym_env runners.workers runners.atari runners",
    "vec_evaluator policy episode_stats interrupts",
    "files compilation_cache checkpoint zoo run_dir policy_dir provenance run_config",
    "stats page figures run_labels run_figures comparison_tables comparison",
    "video evaluation doctor env_report",
    "training_loop hooks best_policy training",
    "search_space study tuning",
    "exporters.player exporters.arrays exporters.onnx exporters.check exporters",
    "loggers loggers.tensorboard loggers.trackers loggers.console loggers.progress_bar",
    "loggers.timings",
    "paper paper.figures paper.running paper.runs paper.verdicts paper.experiment paper.jobs",
    "paper.descriptions paper.noisy_control paper.ablations paper.engram_preset paper.new_seeds",
    "paper.return_bound paper.maze paper.navigation paper.convergence paper.theory",
    "paper.parameters",
    "paper.trajectory_space paper.miniworld paper.miniworld_learning",
    "paper.noisy_control_page paper.maze_page paper.pickup_page",
    "paper.validation paper.atari_scores paper.atari_runs paper.atari_page paper.campaign",
    "paper.atari paper.experiments paper.report paper.maze_animation",
    "cli.hooks cli.training cli.tuning cli.evaluation cli.comparison cli.paper cli.play",
    "cli.exporting cli.config_file cli.arguments cli.output cli cli.__main__",
    "__main__ engram",
]
LAYERS = [name for room in ROOMS for name in room.split()]
FILES_START = "files"
"""first module that may read or write files, log or plot"""
READ_FILES = {
    "user_cache",
    "episodic.knn.cpp",
    "episodic.knn.pallas",
    "envs.maze.pretrained",
    "envs.maze.weight_files",
}
"""make folders, cache a compiled library, or read the weights of a network"""


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "engram"


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def import_names(tree):
    """Full names of all imports, wherever in the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def engram_imports(tree):
    """The modules of Engram that a source imports."""
    for name in import_names(tree):
        if name.split(".")[0] == "engram":
            inner = name.removeprefix("engram.")
            yield inner if inner in MODULES else inner.rpartition(".")[0] or "engram"


def test_every_module_is_listed_once():
    assert sorted(LAYERS) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_modules_above_it(name):
    above = LAYERS[: LAYERS.index(name)]
    for other in engram_imports(TREES[name]):
        assert other in MODULES, f"{name} imports {other}, which is not a module"
        assert other in above, f"{name} must not import {other}"


def test_imports_are_found_inside_functions_and_in_all_forms():
    source = """
def f():
    from engram.training import train
    from engram import runners, EngramError
    import engram.run_dir as r
"""
    expected = {"training", "runners", "engram", "run_dir"}
    assert set(engram_imports(ast.parse(source))) == expected


@pytest.mark.parametrize("name", LAYERS[: LAYERS.index(FILES_START)])
def test_modules_above_files_do_not_log_plot_or_use_files(name):
    if name in READ_FILES:
        return
    libraries = {"logging", "pathlib", "os", "io", "json", "csv", "matplotlib"}
    used = {imported.split(".")[0] for imported in import_names(TREES[name])}
    assert not used & libraries
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print"}


def global_names(code):
    """Names that a code object, or one inside it, looks up in its module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from global_names(constant)


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_every_global_name_is_defined(name):
    """Linters cannot check this: they take the shapes in jaxtyping's annotations for names."""
    module = importlib.import_module("engram" if name == "engram" else f"engram.{name}")
    code = compile(MODULES[name].read_text(encoding="utf-8"), name, "exec", dont_inherit=True)
    functions = [x for x in code.co_consts if isinstance(x, CodeType)]
    known = {*vars(module), *dir(builtins), "__module__", "__qualname__", "__annotations__"}
    for function in functions:
        local = {i.argval for i in dis.get_instructions(function) if i.opname == "STORE_NAME"}
        assert set(global_names(function)) <= known | local

"""The index of all experiments: the paper's in its order, and ours."""

from collections.abc import Sequence

from engram.errors import EngramError, nearest_names
from engram.paper.ablations import ABLATIONS, CONSOLIDATION
from engram.paper.atari import ATARI
from engram.paper.convergence import CONVERGENCE
from engram.paper.engram_preset import ENGRAM_PARTS, ENGRAM_PRESET, MBEC_DEFAULTS
from engram.paper.experiment import Experiment
from engram.paper.maze import MAZE
from engram.paper.navigation import NAVIGATION, NAVIGATION_PARTS
from engram.paper.new_seeds import NEW_SEEDS
from engram.paper.noisy_control import CLEAN_CONTROL, CONTRIBUTIONS, NOISY_CONTROL
from engram.paper.parameters import PARAMETERS
from engram.paper.return_bound import RETURN_BOUND, RETURN_BOUND_ENGRAM
from engram.paper.theory import THEORY
from engram.paper.trajectory_space import TRAJECTORY_SPACE

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        MAZE,
        NOISY_CONTROL,
        CONTRIBUTIONS,
        CONVERGENCE,
        TRAJECTORY_SPACE,
        ABLATIONS,
        CONSOLIDATION,
        PARAMETERS,
        THEORY,
        CLEAN_CONTROL,
        ENGRAM_PRESET,
        ENGRAM_PARTS,
        MBEC_DEFAULTS,
        NEW_SEEDS,
        RETURN_BOUND,
        RETURN_BOUND_ENGRAM,
        ATARI,
        NAVIGATION,
        NAVIGATION_PARTS,
    )
}

NAMES = (*EXPERIMENTS, "paper", "all")
"""`paper` means all of the paper's experiments, `all` also ours"""


def select(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, each once."""
    if unknown := [name for name in names if name not in NAMES]:
        raise EngramError(
            f"There is no experiment {unknown[0]!r}.{nearest_names(unknown[0], NAMES)}"
        )
    selected = []
    for name, experiment in EXPERIMENTS.items():
        if name in names or "all" in names or ("paper" in names and experiment.in_paper):
            selected.append(experiment)
    return selected

"""All that the paper shows, in its order, and what we add; what cannot be run yet says why."""

from collections.abc import Sequence

from engram.errors import EngramError, nearest_names
from engram.experiments.atari import ATARI
from engram.experiments.control import ABLATIONS, CONSOLIDATION, CONTRIBUTIONS, ENGRAM, NOISY_TASKS, PIECES
from engram.experiments.convergence import CONVERGENCE
from engram.experiments.experiment import Claim, Experiment
from engram.experiments.mathematics import MATHEMATICS
from engram.experiments.parameters import PARAMETERS
from engram.experiments.space import SPACE


def planned(name: str, paper: str, later: str, *says: tuple[int, str]) -> Experiment:
    """Something that cannot be run yet."""
    return Experiment(name, paper, tuple(Claim(number, words, lambda found: (), "") for number, words in says), later=later)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        planned(
            "maze",
            "Figures 2 and 3, and the appendix's maze figures",
            "the mazes are not there yet",
            (1, "As noise grows MFEC fails, DQN ends worse than random, MBEC stays much better than both."),
            (2, "With traps MBEC is best in reward and completed episodes."),
            (3, "In dynamic mazes the TR loss is 5 to 10% better than the TP loss, and an untrained model poor."),
            (10, "Of all p_read, 0.7 is the most stable and the fastest (5x5 maze)."),
        ),
        NOISY_TASKS,
        CONTRIBUTIONS,
        CONVERGENCE,
        SPACE,
        ABLATIONS,
        CONSOLIDATION,
        PARAMETERS,
        MATHEMATICS,
        ENGRAM,
        PIECES,
        ATARI,
        planned(
            "navigation",
            "Figure 7: 3D navigation with 3 and 5 objects",
            "the 3D task is not there yet",
            (12, "MBEC++ learns best; DRQN fails; DQN and PPO are much slower."),
        ),
    )
}


NAMES = (*EXPERIMENTS, "paper", "all")
"""`paper` is all that it shows, without what we add"""


def experiments(names: Sequence[str]) -> list[Experiment]:
    """Those of these names, each once."""
    if unknown := [name for name in names if name not in NAMES]:
        raise EngramError(f"The paper has no experiment {unknown[0]!r} here.{nearest_names(unknown[0], NAMES)}")
    return [e for name, e in EXPERIMENTS.items() if name in names or "all" in names or ("paper" in names and not e.is_ours)]

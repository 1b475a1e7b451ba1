"""A study of Optuna in a file of SQLite, which several processes may work on at once."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from engram import zoo
from engram.errors import EngramError
from engram.run_dir import STUDY_FILE, refuse_links
from engram.search_space import Interval, SearchSpace

REPORTS = 20
"""how often in a training a trial reports"""
WARMUP_REPORTS = 4
"""reports after which a trial may be pruned"""
STARTUP_TRIALS = 5
"""complete trials before any is pruned"""
MIN_TRIALS_OF_IMPORTANCE = 10
"""complete trials from which the importance of options is estimated"""


def import_optuna() -> Any:
    """Optuna, without its own lines on the screen."""
    try:
        import optuna
    except ImportError:
        raise EngramError(
            "Tuning needs Optuna, which is not installed: pip install 'engram-rl[tune]'."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Study:
    """The trials of a folder; its settings are those with which it was begun."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        space: SearchSpace,
        first: Mapping[str, Any],
    ):
        """Opens the study, or begins it with a trial of the options `first`."""
        zoo.refuse(folder)
        if (folder / "config.json").exists():
            raise EngramError(f"{folder} is a run folder: name another with --out.")
        self.optuna = import_optuna()
        self.folder = folder
        self.distributions = {name: self._distribution(x) for name, x in space.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            refuse_links(folder)
            self.lock_file = open(folder / ".lock", "a+b")  # noqa: SIM115
        except OSError as error:
            raise EngramError(
                f"Nothing can be written into {folder} ({error.strerror}): name another folder "
                "with --out."
            ) from error
        with self.exclusive():
            self.study = self._open()
            begun = self.study.user_attrs.get("settings")
            if begun is None:
                if all(value in space[name] for name, value in first.items()):
                    self.study.enqueue_trial(dict(first))
                self.study.set_user_attr("settings", dict(settings))
        if begun is not None:
            _check_same(folder, begun, settings)

    def close(self) -> None:
        """Gives up all locks."""
        self.lock_file.close()

    def claim(self, num_trials: int) -> Any:
        """A new trial with its options, or None if all are done or running."""
        with self.exclusive():
            self._fail_abandoned()
            count = len(self.trials())
            if count >= num_trials:
                return None
            # A seed for each trial, so that processes draw different ones and a study continues as
            # if it had never stopped.
            self.study.sampler = self.optuna.samplers.TPESampler(seed=count)
            trial = self.study.ask(self.distributions)
            _lock_byte(self.lock_file, trial.number + 1)
            return trial

    def report(self, trial: Any, value: float, number: int) -> bool:
        """Stores the value of a running trial, and says whether it should be pruned.

        Optuna's own pruner would compare the best value so far, which in reinforcement learning may
        be that of random play.
        """
        complete = self.optuna.trial.TrialState.COMPLETE
        with self.exclusive():
            trial.report(value, number)
            others = [
                other.intermediate_values[number]
                for other in self.study.get_trials(deepcopy=False, states=(complete,))
                if number in other.intermediate_values
            ]
        is_known = number >= WARMUP_REPORTS and len(others) >= STARTUP_TRIALS
        return is_known and value < median(others)

    def complete(self, trial: Any, value: float) -> None:
        """Ends a trial with its value."""
        self._end(trial, "COMPLETE", value)

    def prune(self, trial: Any) -> None:
        """Ends a trial that is worse than others were."""
        self._end(trial, "PRUNED")

    def fail(self, trial: Any, sentence: str) -> None:
        """Ends a trial that failed, with the reason."""
        with self.exclusive():
            trial.set_user_attr("error", sentence)
        self._end(trial, "FAIL")

    def abandon(self, trial: Any) -> None:
        """Ends a trial that was interrupted; its options are tried again."""
        with self.exclusive():
            self.study.enqueue_trial(trial.params)
        self._end(trial, "FAIL")

    def trials(self) -> list[Any]:
        """The trials that are finished or running, but for those that were interrupted."""
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if _counts(trial)]

    def importance(self) -> dict[str, float]:
        """The share of each option in what makes a trial good (PED-ANOVA); none if trials are too
        few, or too alike, of which Optuna warns."""
        with self.exclusive(), warnings.catch_warnings(), suppress(UserWarning, ValueError):
            warnings.simplefilter("error")
            complete = sum(trial.state.name == "COMPLETE" for trial in self.trials())
            if complete >= MIN_TRIALS_OF_IMPORTANCE:
                return self.optuna.importance.get_param_importances(self.study)
        return {}

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Within it no other process reads or writes the study: SQLite would refuse some."""
        from sqlalchemy.exc import SQLAlchemyError

        _lock_byte(self.lock_file, 0, wait=True)
        try:
            yield
        except (SQLAlchemyError, self.optuna.exceptions.StorageInternalError) as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise EngramError(
                f"{self.folder / STUDY_FILE} cannot be read or written ({reason}): free some "
                "space, restore it from a copy, or name another folder with --out."
            ) from error
        finally:
            _unlock_byte(self.lock_file, 0)

    def _open(self) -> Any:
        from sqlalchemy import URL

        url = URL.create("sqlite", database=str(self.folder / STUDY_FILE)).render_as_string()
        storage = self.optuna.storages.RDBStorage(
            url.replace("{", "{{").replace("}", "}}"),
            engine_kwargs={"connect_args": {"timeout": 60}},
        )
        return self.optuna.create_study(
            storage=storage,
            study_name="tune",
            direction="maximize",
            load_if_exists=True,
        )

    def _distribution(self, dimension: Any) -> Any:
        """What Optuna calls an interval or some values."""
        kinds = self.optuna.distributions
        if not isinstance(dimension, Interval):
            return kinds.CategoricalDistribution(dimension.values)
        is_whole = isinstance(dimension.low, int) and isinstance(dimension.high, int)
        kind = kinds.IntDistribution if is_whole else kinds.FloatDistribution
        return kind(dimension.low, dimension.high, log=dimension.log)

    def _end(self, trial: Any, state: str, value: float | None = None) -> None:
        with self.exclusive():
            self.study.tell(trial.number, value, self.optuna.trial.TrialState[state])
            _unlock_byte(self.lock_file, trial.number + 1)

    def _fail_abandoned(self) -> None:
        """Ends the trials whose processes were killed, since their bytes are not locked.

        Their options are tried again.
        """
        running = self.optuna.trial.TrialState.RUNNING
        for trial in self.study.get_trials(deepcopy=False, states=(running,)):
            if _lock_byte(self.lock_file, trial.number + 1):
                if trial.params:
                    self.study.enqueue_trial(trial.params)
                self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
                _unlock_byte(self.lock_file, trial.number + 1)


def _counts(trial: Any) -> bool:
    """Whether a trial is one of those wanted: one that was interrupted has failed without error."""
    state = trial.state.name
    return state != "WAITING" and (state != "FAIL" or "error" in trial.user_attrs)


def _check_same(folder: Path, begun: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raises if a study was begun with other settings."""
    for name in {**begun, **settings}:
        before, now = begun.get(name), settings.get(name)
        if before != now:
            raise EngramError(
                f"The study in {folder} was begun with {name} {before!r}, not {now!r}: give the "
                "same, or name another folder with --out."
            )


def _lock_byte(file: Any, index: int, wait: bool = False) -> bool:
    """Locks a byte of a file; False if another process has, or where there are no such locks."""
    try:
        import fcntl  # not on Windows

        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, index)
    except (ImportError, OSError):
        return False
    return True


def _unlock_byte(file: Any, index: int) -> None:
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_UN, 1, index)

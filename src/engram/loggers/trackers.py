"""Experiment trackers: returns and metrics of every seed, sent to Weights & Biases or trackio."""

import contextvars
import dataclasses
import io
import json
import os
import re
import secrets
import time
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from engram.agents import agent_name
from engram.envs.env_checker import one_line
from engram.errors import EngramError
from engram.files import to_json, write_json
from engram.provenance import describe_machine
from engram.training_loop import Logger, Progress, Training, without_nan

SECONDS_BETWEEN = 1.0
"""seconds between two times that values are sent, at least"""
NOT_IN_PROJECTS = r"/\#?%:"
"""characters that W&B does not allow in the name of a project"""


class ExperimentTracker(Logger):
    """Base of trackers whose packages have the interface of wandb; each seed is a run there.

    The group of these runs and the last step sent are kept in the run folder: a resumed training
    goes on in the same runs, and no step is sent twice. What a tracker lacks of the curves so far
    is sent when a training is resumed.
    """

    package: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, project: str, quiet: bool = False, **init: Any):
        if not project or set(project) & set(NOT_IN_PROJECTS):
            raise EngramError(
                f"A project of {self.title} cannot be called {project!r}: choose a name without "
                f"any of {NOT_IN_PROJECTS}"
            )
        try:
            self.module = import_module(self.package)
        except ImportError:
            raise EngramError(
                f"{self.title} is not installed: pip install 'engram-rl[{self.package}]', or leave "
                "it out."
            ) from None
        self.project = project
        self.quiet = quiet
        """whether it does not print where the runs are"""
        self.init = init
        """further arguments of the package's `init`"""
        self.runs: dict[int, Any] = {}
        self.last_steps: dict[int, int] = {}
        """for each seed the last step that its run has, or that waits"""
        self.waiting: list[tuple[int, int, dict[str, float]]] = []
        """steps, seeds and values to send"""
        self.next_time = 0.0

    def open_run(self, arguments: dict[str, Any]) -> Any:
        """Begins a run, or goes on with it if it exists."""
        raise NotImplementedError

    def close_run(self, tracker_run: Any, is_done: bool) -> None:
        """Ends a run once everything is sent."""
        raise NotImplementedError

    def last_step(self, tracker_run: Any) -> int:
        """The last step that a run has."""
        return self.sent_step

    def where(self) -> str:
        """How to see the runs."""
        raise NotImplementedError

    def on_start(self, run: Training) -> None:
        self.folder = run.folder.path if run.folder else None
        self.has_past = False
        """whether all earlier log points were added"""
        self._find_group(run)
        config = _config(run)
        try:
            for seed in run.seeds:
                arguments = {
                    "project": self.project,
                    "group": self.group,
                    "name": f"{self.group}-seed-{seed}",
                    "config": config | {"seed": seed},
                    "resume": "allow",
                }
                self.runs[seed] = self.open_run(arguments | self.init)
                self.last_steps[seed] = self.last_step(self.runs[seed])
        except Exception as error:
            self._close_runs(is_done=False)
            raise EngramError(
                f"{self.title} could not begin a run ({one_line(error)}): correct that, or leave "
                "it out."
            ) from error
        if not self.quiet:
            print(f"{self.title}: group {self.group}, {self.where()}", flush=True)

    def on_log(self, run: Training, progress: Progress) -> None:
        if not self.has_past:
            self._add_past(run)
            self.has_past = True
        for seed in run.seeds:
            self._add(progress.step, seed, progress.scalars(seed))
        if time.monotonic() >= self.next_time:
            self._send()

    def on_checkpoint(self, run: Training) -> None:
        self._send()

    def on_end(self, run: Training) -> None:
        self._send()
        self._close_runs(is_done=run.is_finished or run.stopped is not None)

    def _find_group(self, run: Training) -> None:
        """Finds the group and the last step sent in the run folder, or names a new group."""
        record = None if self.folder is None else read_record(self.folder, self.package)
        if record is None or record["project"] != self.project:
            name = f"{agent_name(run.agent)}-{run.task.name}"
            if self.folder is not None:
                name = self.folder.resolve().name
            name = re.sub(r"[^\w.+-]+", "-", name)[:80]
            record = {"group": f"{name}-{secrets.token_hex(3)}", "step": 0}
        self.group, self.sent_step = record["group"], record["step"]
        self._write_record()

    def _add_past(self, run: Training) -> None:
        """Adds what the runs lack of all log points before this one."""
        for point, step in enumerate(run.stats.steps(run.spec.num_envs)[:-1]):
            for r, seed in enumerate(run.seeds):
                values = {"return": float(run.stats.returns[point, r])}
                values |= run.stats.metrics_at(point, r)
                self._add(int(step), seed, without_nan(values))

    def _add(self, step: int, seed: int, values: dict[str, float]) -> None:
        """Lets values wait to be sent, unless the run of the seed has them."""
        if step > self.last_steps[seed]:
            self.last_steps[seed] = step
            self.waiting.append((step, seed, values))

    def _send(self) -> None:
        """Sends what is waiting, and writes the last step sent into the run folder."""
        self.next_time = time.monotonic() + SECONDS_BETWEEN
        if not self.waiting:
            return
        for step, seed, values in self.waiting:
            self.runs[seed].log(values, step=step)
        self.sent_step = self.waiting[-1][0]
        self.waiting = []
        self._write_record()

    def _write_record(self) -> None:
        if self.folder is not None:
            record = {"project": self.project, "group": self.group, "step": self.sent_step}
            write_json(self.folder / f"{self.package}.json", record)

    def _close_runs(self, is_done: bool) -> None:
        for tracker_run in self.runs.values():
            self.close_run(tracker_run, is_done)
        self.runs = {}


class WandB(ExperimentTracker):
    """Sends returns and metrics to Weights & Biases."""

    package = "wandb"
    title = "Weights & Biases"

    def __init__(self, project: str, quiet: bool = False, **init: Any):
        super().__init__(project, quiet, **init)
        mode = init.get("mode") or self.module.setup().settings.mode
        if mode in ("offline", "dryrun", "disabled"):
            return
        try:
            with redirect_stderr(io.StringIO()):  # where it says whose login it has found
                has_login = self.module.login(prompt=False, verify=False)
        except TypeError:
            raise EngramError(
                "This version of Weights & Biases is too old: pip install --upgrade wandb."
            ) from None
        if not has_login:
            raise EngramError(
                "Weights & Biases has no login here: run `wandb login`, set WANDB_API_KEY, or "
                "write files alone with WANDB_MODE=offline."
            )

    def open_run(self, arguments: dict[str, Any]) -> Any:
        own = {
            "id": arguments["name"],
            "reinit": "create_new",  # since the runs of all seeds are open together
            "settings": self.module.Settings(silent=True, console="off"),
        }
        if self.folder is not None and "WANDB_DIR" not in os.environ:
            own["dir"] = str(self.folder)
        return self.module.init(**own | arguments)

    def close_run(self, tracker_run: Any, is_done: bool) -> None:
        tracker_run.finish(exit_code=0 if is_done else 1)

    def last_step(self, tracker_run: Any) -> int:
        # The server knows what a killed process had uploaded. A run that is offline knows of no
        # earlier one, which it replaces once it is uploaded, and so needs all steps.
        return tracker_run.step - 1

    def where(self) -> str:
        first = next(iter(self.runs.values()))
        if first.offline:
            folder = Path(first.dir).parent.parent
            return f"offline in {folder}: upload the newest folder of each seed with `wandb sync`"
        return first.project_url or "disabled"


class Trackio(ExperimentTracker):
    """Sends returns and metrics to trackio."""

    package = "trackio"
    title = "trackio"

    def open_run(self, arguments: dict[str, Any]) -> Any:
        # Trackio ends the run before in the same context, and prints several lines per run.
        with redirect_stdout(io.StringIO()):
            return contextvars.copy_context().run(self.module.init, **arguments)

    def close_run(self, tracker_run: Any, is_done: bool) -> None:
        with redirect_stdout(io.StringIO()):
            tracker_run.finish()

    def where(self) -> str:
        return f"trackio show --project {self.project}"


def read_record(folder: str | Path, package: str) -> dict[str, Any] | None:
    """The project, the group and the last step sent of a run folder, if it was tracked."""
    file = Path(folder) / f"{package}.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return {"project": record["project"], "group": record["group"], "step": int(record["step"])}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EngramError(
            f"{file} cannot be read ({one_line(error)}): remove it, and what is sent begins anew."
        ) from error


def _config(run: Training) -> dict[str, Any]:
    """What all seeds of a training share: options, task, steps, versions and device."""
    options = dataclasses.asdict(run.agent) if dataclasses.is_dataclass(run.agent) else {}
    config = {
        "agent": agent_name(run.agent),
        "options": options,
        "task": run.task.name,
        "env_kwargs": dict(run.task.env_kwargs),
        "wrappers": list(run.task.wrappers),
        "observe": list(run.task.observe),
        "seeds": list(run.seeds),
        "steps": run.steps,
        "num_envs": run.spec.num_envs,
    }
    return to_json(config | describe_machine())

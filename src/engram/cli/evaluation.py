"""The commands that train nothing: eval, check, list, show, doctor."""

from contextlib import nullcontext
from dataclasses import dataclass

from engram.cli.hooks import check_loudness
from engram.cli.training import read_task, split_words, use_device
from engram.config import Count
from engram.errors import EngramError


@dataclass(frozen=True)
class Eval:
    """Evaluate trained agents greedily."""

    dir: str
    """the run folder"""
    episodes: Count = 100
    """greedy episodes per seed"""
    video: str | None = None
    """a file (.gif, .webp or, with ffmpeg, .mp4) for one episode of the best seed"""
    allow_module: str | None = None
    """modules of agents and environments that the folder names and may import: they run code"""
    device: str | None = None
    """cpu, gpu or tpu; the fastest available if None"""
    quiet: bool = False
    """print warnings, errors and a line with the mean return alone (-q)"""
    verbose: bool = False
    """print what is compiled, and times (-v)"""

    def run(self) -> None:
        from engram.video import check_name

        check_loudness(self)
        if self.video:
            check_name(self.video)

        from engram import compilation_cache
        from engram.loggers.console import plain_warnings
        from engram.loggers.timings import print_times

        with use_device(self.device), plain_warnings():
            compilation_cache.enable()
            with print_times() if self.verbose else nullcontext():
                self.evaluate_and_record()

    def evaluate_and_record(self) -> None:
        """Print the returns of each seed, and record an episode of the best if wanted."""
        from rich.console import Console

        from engram import training
        from engram.agents import agent_name
        from engram.evaluation import evaluate_policy, make_render_env, record_episode
        from engram.loggers.console import print_evaluation, print_line
        from engram.video import save_video

        run = training.load_training(
            self.dir,
            call="engram.evaluate({path!r}, task=...)",
            allow_modules=split_words(self.allow_module),
        )
        if self.video:
            make_render_env(run.task).close()  # refuse before the evaluation, not after
        policies = training.load_policies(run)
        step = training.trained_steps(self.dir)
        with Console(quiet=self.quiet).status("evaluating"):
            returns = {
                seed: evaluate_policy(policy, run.task, self.episodes, seed)
                for seed, policy in policies.items()
            }
        at_step = "" if step >= run.steps else f" after {step:,} of {run.steps:,} steps"
        title = f"{agent_name(run.agent)} on {run.task.name}{at_step}"
        print_evaluation(title, returns, self.quiet)
        if self.video:
            best = max(returns, key=lambda seed: returns[seed].mean())
            frames, fps = record_episode(policies[best], run.task, best)
            save_video(frames, self.video, fps)
            if not self.quiet:
                print_line(f"One episode of seed {best}: {self.video}")


@dataclass(frozen=True)
class Check:
    """Check an environment, and tell what agents see of it."""

    task: str
    """a name (engram list), gym:ID or atari:GAME"""
    env_kwargs: str | None = None
    """arguments of the environment: --env-kwargs size=7 trap=true"""
    max_episode_steps: Count | None = None
    """time limit of the environment of gym:ID, where it has none or another"""
    wrapper: str | None = None
    """wrappers module:Class around the environment of gym:ID, the innermost first"""
    observe: str | None = None
    """names of the parts of dictionaries that are observed, of gym:ID"""

    def run(self) -> None:
        from rich.console import Console

        from engram.env_report import report
        from engram.loggers.console import plain_warnings, print_pairs

        task = read_task(self)
        with plain_warnings(), Console(emoji=False).status("checking"):
            found = report(task)
        print_pairs(task.name, found)


@dataclass(frozen=True)
class List:
    """List agents, tasks, presets and trained agents."""

    def run(self) -> None:
        from engram.loggers.console import print_agents_and_tasks

        print_agents_and_tasks()


@dataclass(frozen=True)
class Show:
    """Show an agent's options, their defaults and presets."""

    agent: str
    """a name (engram list), or module:Class for an agent of your own"""

    def run(self) -> None:
        from engram.loggers.console import print_options

        print_options(self.agent)


@dataclass(frozen=True)
class Doctor:
    """Tell what works on this machine."""

    def run(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        from engram.doctor import examine

        screen = Console()
        with screen.status("checking"):
            outcomes = examine()
        table = Table(box=None, show_header=False, pad_edge=False)
        for outcome in outcomes:
            missing = "[red]fails[/]" if outcome.is_required else "[yellow]not here[/]"
            mark = "[green]works[/]" if outcome.works else missing
            table.add_row(mark, outcome.name, escape(outcome.text))
        screen.print(table)
        if broken := [x.name for x in outcomes if x.is_required and not x.works]:
            raise EngramError(f"Engram cannot run here: mend {' and '.join(broken)} as told above.")

"""The command that writes a trained agent for other programs: export."""

from dataclasses import dataclass

from engram.cli.training import Seed, split_words


@dataclass(frozen=True)
class Export:
    """Write a trained agent for NumPy, for ONNX or to share."""

    dir: str
    """the run folder"""
    file: str
    """a .npz file, played by the player.py beside it with NumPy alone; a .onnx file; or, without
    an ending, a policy folder, which is evaluated and played as a run folder is"""
    seed: Seed | None = None
    """the seed whose agent is written; the first if None"""
    overwrite: bool = False
    """replace files that exist"""
    half: bool = False
    """half precision, of policy folders"""
    allow_module: str | None = None
    """modules of agents and environments that the folder names and may import: they run code"""

    def run(self) -> None:
        from rich.console import Console

        from engram.exporters import PLAYER, export
        from engram.loggers.console import plain_warnings, print_line

        with plain_warnings(), Console(emoji=False).status("exporting"):
            written = export(
                self.dir,
                self.file,
                self.seed,
                self.overwrite,
                self.half,
                allow_modules=split_words(self.allow_module),
            )
        beside = f", and {PLAYER} beside it" if written.file.suffix.lower() == ".npz" else ""
        print_line(f"The agent of seed {written.seed}: {written.file}{beside}")
        observations = "observations of the task" if written.in_task else "random observations"
        print_line(
            f"Its action is the agent's on {written.agreed:,} of {written.compared:,} "
            f"{observations}."
        )
        if written.agreed < written.compared:
            print_line(
                "On the others two actions may have nearly the same value, which programs round "
                "differently; if these are many, tell us."
            )

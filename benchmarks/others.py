"""The Pythons of the other software, and how to install it."""

import subprocess
import sys
from collections.abc import Callable

from benchmarks.options import Options
from benchmarks.report import ROOT

PACKAGES = (
    *("stable-baselines3", "sb3-contrib", "sbx-rl", "pfrl", "rejax", "memorax"),
    "gymnax<1",  # Rejax and Memorax do not run with 1.0
)
HOME = ROOT / ".venv-bench"
CPU_TORCH = "https://download.pytorch.org/whl/cpu"


def find_pythons(options: Options) -> dict[str, str]:
    """Paths of Pythons by software; `others` stands for all software that is not named."""
    pythons = {"engram": sys.executable}
    if options.coach_python is not None:
        pythons["coach"] = options.coach_python
    if options.others_python is None:
        install(options.log)
        return pythons | {"others": str(HOME / "bin/python")}
    return pythons | {"others": options.others_python}


def install(log: Callable[[str], None]) -> None:
    """Makes .venv-bench unless it has all packages; a failure is logged, not raised."""
    ready = HOME / "ready"
    if ready.exists() and ready.read_text() == str(PACKAGES):
        return
    log(f"making .venv-bench for {', '.join(PACKAGES)}")
    pip_install = [str(HOME / "bin/python"), "-m", "pip", "install", "--quiet"]
    index = ["--index-url", CPU_TORCH] if sys.platform == "linux" else []
    try:
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
        (HOME / ".gitignore").write_text("*\n")
        # PyTorch first, since pip would otherwise install the one with CUDA, of gigabytes.
        subprocess.run([*pip_install, "torch", *index], check=True)
        subprocess.run([*pip_install, *PACKAGES], check=True)
        ready.write_text(str(PACKAGES))
    except subprocess.CalledProcessError as error:
        log(f"could not make .venv-bench ({error}); the other software will be missing")

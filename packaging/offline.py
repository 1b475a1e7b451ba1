"""Packs Engram, and what it needs beside an installed JAX, into one folder for machines without a network.

    python packaging/offline.py [--python 3.12] [--out offline]

There, `PYTHONPATH=offline python -m engram.cli train ...` is all. JAX with what it brings (NumPy, SciPy) must be installed on that machine;
curves are drawn, and Atari's videos work; classic control's need pygame, which is left out.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
GIVEN = {"jax", "jaxlib", "numpy", "scipy", "ml-dtypes", "opt-einsum"}
"""come with JAX"""
UNUSED = {"pygame-ce", "pygame", "pygments", "swig", "tzdata"}
"""for windows, coloured code, compilers and time zones"""
WASTE = ("**/__pycache__", "**/tests", "**/*.c", "Box2D/examples", "bin", "share", "**/*.pyi", "PIL/_avif*", "pillow.libs/libavif*")
WASTE += tuple(f"matplotlib/mpl-data/{what}" for what in ("sample_data", "fonts/afm", "fonts/pdfcorefonts", "images"))
FONTS = {"__init__.py", "agl.py", "version.py", "misc"}
"""what Matplotlib needs of fontTools to draw pixels: next to nothing"""
PYGAME = '''"""Stands for pygame, which is left out."""


def __getattr__(name):
    if name.startswith("__") or name == "gfxdraw":  # which Python then imports
        raise AttributeError(name)
    raise ImportError("pygame is left out of this package: draw this where it is installed")
'''
MARK = "engram-offline.txt"
MOST = 60 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", help="the Python there, such as 3.12")
    parser.add_argument("--out", type=Path, default=Path("offline"))
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["atari"]]
    if options.out.exists():
        if not (options.out / MARK).exists():
            sys.exit(f"{options.out} is there and was not made by this script: name another folder with --out.")
        shutil.rmtree(options.out)
    pip(options, "--no-deps", *pinned(options, wanted))
    shutil.copytree(ROOT / "src" / "engram", options.out / "engram")
    write(options.out / f"engram_rl-{project['version']}.dist-info" / "METADATA", f"Name: engram-rl\nVersion: {project['version']}\n")
    for module in ("__init__", "gfxdraw"):  # Lunar Lander imports them before it needs them
        write(options.out / "pygame" / f"{module}.py", PYGAME)
    prune(options.out)
    write(options.out / MARK, "Made by packaging/offline.py, which may remove this folder.\n")
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"{options.out}: {size / 2**20:.1f} MiB for Python {options.python}; use it as PYTHONPATH={options.out}")
    if size > MOST:
        sys.exit(f"That is more than {MOST / 2**20:.0f} MiB: see what has grown, and leave out what is not needed.")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def pinned(options: argparse.Namespace, wanted: list[str]) -> list[str]:
    """All that is needed, with versions, but for what is given or unused."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip(options, "--dry-run", "--ignore-installed", "--report", str(report), *wanted)
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    known = {meta["name"].lower().replace("_", "-"): meta["version"] for meta in found}
    return [f"{name}=={version}" for name, version in known.items() if name not in GIVEN | UNUSED]


def pip(options: argparse.Namespace, *words: str) -> None:
    there = ["--only-binary", ":all:", "--python-version", options.python, "--target", str(options.out)]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *there, *words], check=True)


def prune(out: Path) -> None:
    """Leaves out what is never used, and the names of functions in compiled code."""
    for pattern in WASTE:
        for path in list(out.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in (out / "fontTools").iterdir():
        if path.name not in FONTS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if shutil.which("strip"):
        for library in (*out.rglob("*.so"), *out.rglob("*.so.*")):
            subprocess.run(["strip", "--strip-unneeded", str(library)], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

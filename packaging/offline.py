"""Packs Engram and its dependencies, except JAX, into one folder for machines without a network.

    python packaging/offline.py [--python 3.12] [--out offline] [--extras atari]

There, `PYTHONPATH=offline python -m engram.cli train ...` works. The machine must have JAX with
its own dependencies (NumPy, SciPy). Learning curves and Atari videos work. Videos of classic
control need pygame, which is left out. Of MiniWorld only what PickupObjects draws is packed; it
needs OpenGL and fontconfig on the other machine.
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
INSTALLED = {"jax", "jaxlib", "numpy", "scipy", "ml-dtypes", "opt-einsum"}
"""packages that come with JAX"""
UNUSED = {"pygame-ce", "pygame", "pygments", "swig", "tzdata"}
"""packages for windows, colored code, compilers and time zones"""
UNUSED_FILES = (
    *("**/__pycache__", "**/tests", "**/*.c", "**/*.pyi", "bin", "share", "Box2D/examples"),
    *("PIL/_avif*", "pillow.libs/libavif*"),
    *("matplotlib/mpl-data/sample_data", "matplotlib/mpl-data/images"),
    *("matplotlib/mpl-data/fonts/afm", "matplotlib/mpl-data/fonts/pdfcorefonts"),
)
MINIWORLD_FILES = {
    "textures": ("asphalt_1.", "brick_wall_1.", "concrete_tiles_1."),
    "meshes": ("ball_", "key_"),
}
"""beginnings of the names of what its room shows"""
FONT_TOOLS = {"__init__.py", "agl.py", "version.py", "misc"}
"""what Matplotlib needs of fontTools to draw pixels"""
PYGAME = '''"""Stands for pygame, which is left out."""


def __getattr__(name):
    if name.startswith("__") or name == "gfxdraw":  # which Python then imports
        raise AttributeError(name)
    raise ImportError("pygame is left out of this package: draw this where it is installed")
'''
MARKER = "engram-offline.txt"
"""a file that shows that this script made the folder"""
MAX_SIZE = 60 * 2**20
"""bytes"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--python",
        default=f"{sys.version_info.major}.{sys.version_info.minor}",
        help="the Python of the other machine, such as 3.12",
    )
    parser.add_argument("--out", type=Path, default=Path("offline"))
    parser.add_argument(
        "--extras", nargs="*", default=["atari"], help="optional dependencies to pack"
    )
    options = parser.parse_args()
    out, python = options.out, options.python
    remove_old(out)
    pack(out, python, options.extras)
    remove_unused(out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    mebibytes = size / 2**20
    print(f"{out}: {mebibytes:.1f} MiB for Python {python}; use it as PYTHONPATH={out}")
    if size > MAX_SIZE:
        sys.exit(
            f"That is more than {MAX_SIZE / 2**20:.0f} MiB: see what has grown, and leave out what "
            "is not needed."
        )


def remove_old(out: Path) -> None:
    """Removes a folder that an earlier call made; exits if something else is there."""
    if not out.exists():
        return
    if not (out / MARKER).exists():
        sys.exit(f"{out} exists and was not made by this script: name another folder with --out.")
    shutil.rmtree(out)


def pack(out: Path, python: str, extras: list[str]) -> None:
    """Installs the dependencies and copies Engram."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if unknown := set(extras) - set(project["optional-dependencies"]):
        sys.exit(f"pyproject.toml has no extra {min(unknown)!r}: name others.")
    optional = [name for extra in extras for name in project["optional-dependencies"][extra]]
    requirements = [*project["dependencies"], *optional]
    pip_install(out, python, "--no-deps", *pinned(out, python, requirements))
    shutil.copytree(ROOT / "src" / "engram", out / "engram")
    version = project["version"]
    metadata = f"Name: engram-rl\nVersion: {version}\n"
    write(out / f"engram_rl-{version}.dist-info" / "METADATA", metadata)
    for module in ("__init__", "gfxdraw"):  # Lunar Lander imports them before it needs them
        write(out / "pygame" / f"{module}.py", PYGAME)
    write(out / MARKER, "Made by packaging/offline.py, which may remove this folder.\n")


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def pinned(out: Path, python: str, requirements: list[str]) -> list[str]:
    """All packages to install, with their versions."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        report_options = ("--dry-run", "--ignore-installed", "--report", str(report))
        pip_install(out, python, *report_options, *requirements)
        packages = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    versions = {
        package["name"].lower().replace("_", "-"): package["version"] for package in packages
    }
    return [
        f"{name}=={version}" for name, version in versions.items() if name not in INSTALLED | UNUSED
    ]


def pip_install(out: Path, python: str, *arguments: str) -> None:
    """Runs `pip install` into the folder, for the Python of the other machine."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    target = ["--only-binary", ":all:", "--python-version", python, "--target", str(out)]
    subprocess.run([*command, *target, *arguments], check=True)


def remove_unused(out: Path) -> None:
    """Removes files that are never used, and symbols of compiled code."""
    unused = [path for pattern in UNUSED_FILES for path in out.glob(pattern)]
    for folder, kept in MINIWORLD_FILES.items():
        files = out.glob(f"miniworld/{folder}/**/*.*")
        unused += [path for path in files if not path.name.startswith(kept)]
    unused += [path for path in (out / "fontTools").iterdir() if path.name not in FONT_TOOLS]
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if shutil.which("strip"):
        for library in (*out.rglob("*.so"), *out.rglob("*.so.*")):
            command = ["strip", "--strip-unneeded", str(library)]
            subprocess.run(command, check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

"""Trained agents that come with Engram: policy folders, named zoo:NAME wherever a run folder is."""

from pathlib import Path

from engram.errors import EngramError, nearest_names

PREFIX = "zoo:"
FOLDER = Path(__file__).parent / "data" / "zoo"


def names() -> list[str]:
    """The names of all trained agents."""
    return sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def is_name(path: str | Path) -> bool:
    """Whether a path is zoo:NAME."""
    return str(path).startswith(PREFIX)


def resolve(path: str | Path) -> Path:
    """The folder that zoo:NAME stands for; any other path as it is."""
    if not is_name(path):
        return Path(path)
    name = str(path).removeprefix(PREFIX)
    known = names()
    if name not in known:
        raise EngramError(f"The zoo has no {name!r}.{nearest_names(name, known)}")
    return FOLDER / name


def refuse(path: str | Path) -> None:
    """Raises if zoo:NAME is named where a new folder would be made."""
    if is_name(path):
        raise EngramError(
            f"{path} cannot be written, since {PREFIX} stands for agents that come with Engram: "
            "name another folder."
        )


def headline(name: str) -> str:
    """The sentence of its card that says how good it is."""
    return (FOLDER / name / "README.md").read_text().splitlines()[2]

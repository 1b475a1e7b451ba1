"""Imports of modules that users name, such as `my_module:MyAgent` or `gym:my_module:MyEnv-v0`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def working_directory_importable() -> Iterator[None]:
    """Within it modules of the working directory are found, after all others."""
    if "" in sys.path:
        yield
        return
    sys.path.append("")
    try:
        yield
    finally:
        sys.path.remove("")  # and nothing that the module itself may have added

"""Ctrl-C and SIGTERM as a flag, so that a training can save before it ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C or SIGTERM into a flag; the second one acts as it did before.

    An exception in the middle of a step could lose the state that the device is working on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    flag = threading.Event()

    def restore_handlers() -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)

    def raise_flag(*_: Any) -> None:
        flag.set()
        restore_handlers()

    before = {kind: signal.signal(kind, raise_flag) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag.is_set
    finally:
        restore_handlers()

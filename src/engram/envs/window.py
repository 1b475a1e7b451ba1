"""A window for pictures, by pygame, as Gymnasium's own environments have."""

from contextlib import redirect_stdout
from typing import Any

import numpy as np
from jaxtyping import UInt8

from engram.errors import EngramError

EVENT_MILLISECONDS = 100
"""after so long without an event Python looks whether Ctrl-C was pressed"""


class Window:
    """Shows pictures and reads keys; once the user has closed it, nothing is shown any more."""

    def __init__(self, title: str):
        self._pygame = import_pygame()
        try:
            self._pygame.display.init()
            if self._pygame.display.get_driver() == "offscreen":  # SDL's last resort
                raise self._pygame.error("there is no screen")
        except self._pygame.error as error:
            raise EngramError(
                f"No window can be opened ({error}): use a computer with a screen, or do "
                "without --window or render_mode='human'."
            ) from error
        self._clock = self._pygame.time.Clock()
        self.is_open = True
        self.title = title
        """shown with the next picture"""

    def show(self, picture: UInt8[np.ndarray, "H W 3"], fps: float) -> None:
        """Shows a picture; waits so long that there are at most `fps` pictures per second."""
        pygame = self._pygame
        if not self.is_open:
            return
        if not pygame.display.get_init():  # pygame has one display, which another user has closed
            pygame.display.init()
        events = pygame.event.get(exclude=pygame.KEYDOWN)  # keys are left for `wait_for_key`
        if any(event.type == pygame.QUIT for event in events):
            self.close()
            return
        height, width = picture.shape[:2]
        screen = pygame.display.get_surface()
        if screen is None or screen.get_size() != (width, height):
            screen = pygame.display.set_mode((width, height))
        pygame.display.set_caption(self.title)
        screen.blit(pygame.image.frombuffer(picture.tobytes(), (width, height), "RGB"), (0, 0))
        pygame.display.flip()
        self._clock.tick(fps)

    def wait_for_key(self) -> str | None:
        """Waits for a key and gives pygame's name of it; None if the user closes the window."""
        pygame = self._pygame
        while self.is_open:
            event = pygame.event.wait(EVENT_MILLISECONDS)
            if event.type == pygame.KEYDOWN:
                return pygame.key.name(event.key)
            if event.type == pygame.QUIT:
                self.close()
        return None

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._pygame.display.quit()


def import_pygame() -> Any:
    """The module; raises if it is not installed."""
    try:
        with redirect_stdout(None):  # it would greet
            import pygame
    except ImportError as error:
        raise EngramError(
            "A window needs pygame, which is not installed: pip install pygame-ce."
        ) from error
    return pygame

"""What tests of run folders and of checkpoints share."""


def sentence(excinfo, *words):
    """The message is one sentence that says these words."""
    text = str(excinfo.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert all(word in text for word in words), text

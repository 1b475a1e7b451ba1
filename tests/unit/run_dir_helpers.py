"""What tests of run folders and of checkpoints share."""

from engram.run_dir import create


def sentence(excinfo, *words):
    """The message is one sentence that says these words."""
    text = str(excinfo.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert all(word in text for word in words), text


def write_run(path, returns, agent="dqn", task="cartpole", steps=20, env_kwargs=None, **options):
    """A run folder whose seeds have these returns at equal steps up to the last."""
    config = {"agent": agent, "task": task, "steps": steps, "options": options}
    run = create(path, config | {"env_kwargs": env_kwargs or {}})
    points = len(next(iter(returns.values())))
    rows = [
        (seed, (i + 1) * steps // points, value)
        for seed, values in returns.items()
        for i, value in enumerate(values)
    ]
    run.write_curves(rows)
    return run.path

"""How much commands print: a line if quiet, and what takes time if verbose."""

import re
import threading

import jax
import pytest

from engram.cli import main
from engram.errors import EngramError
from engram.loggers import timings

CACHE_HIT = "/jax/compilation_cache/cache_hits"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("loudness") / "run"
    main(f"train random cartpole --seeds 2 --steps 100 --out {path} --quiet".split())
    return path


def test_quiet_commands_print_their_result_alone(capsys, run_dir):
    main(["resume", str(run_dir), "-q"])
    result = r"random on cartpole: final return \S+ \(2 seeds\), (\S+)\n"
    assert re.fullmatch(result, capsys.readouterr().out)[1] == str(run_dir)
    main(["eval", str(run_dir), "--episodes=2", "--quiet"])
    evaluated = r"random on cartpole: mean return .+, 2 greedy episodes of each seed\n"
    assert re.fullmatch(evaluated, capsys.readouterr().out)


def test_quiet_commands_print_warnings_and_errors(capsys, monkeypatch):
    def fail(*_, **__):
        raise EngramError("not trained in this test")

    monkeypatch.setattr("engram.training.train", fail)
    with pytest.raises(SystemExit):
        main(["train", "dqn", "cartpole", "--steps", "20", "--learning-starts", "99", "-q"])
    output = capsys.readouterr()
    assert "No network will learn in 20 steps" in output.err
    assert "engram: not trained in this test" in output.err
    assert not output.out


def test_verbose_training_prints_device_programs_speed_and_checkpoints(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(timings, "MIN_SECONDS", 0.0)
    main(f"train random cartpole --seeds 2 --steps 100 --out {tmp_path}/run -v".split())
    output = capsys.readouterr().out
    for line in (
        r"device cpu, \d+ processors, JAX \S+",
        r"JaxRunner: 2 seeds, 1 environment each",
        r"loop: traced in \S+ s",
        r"loop: lowered in \S+ s",
        r"loop: (compiled|loaded from the cache) in \S+ s",
        r"step 100: \S+ steps/s in the last \S+ s of training",
        r"checkpoint at step 100: \S+ s, \S+ MB",
        r"\d+ programs, \d+ of them from the cache, compiled or loaded in \S+ s",
        r"\S+ s in all: \S+ s training after compilation, \S+ s checkpoints",
        r"100/100 steps, .+",
    ):
        assert re.search(f"^{line}$", output, re.MULTILINE), line


def test_verbose_evaluation_prints_programs(capsys, run_dir):
    main(["eval", str(run_dir), "--episodes=2", "-v"])
    last_lines = r"\d+ programs, \d+ of them from the cache, .+ s\n\S+ s in all\n$"
    assert re.search(last_lines, capsys.readouterr().out)


def test_programs_are_told_apart_by_whether_the_cache_had_them(capsys):
    def run_program(name, is_cached):
        record = jax.monitoring.record_event_duration_secs
        record("/jax/core/compile/jaxpr_trace_duration", 2.0, fun_name=name)
        if is_cached:
            jax.monitoring.record_event(CACHE_HIT)
        record("/jax/core/compile/backend_compile_duration", 0.5, fun_name=f"jit({name})")

    def hit_in_another_thread():
        thread = threading.Thread(target=jax.monitoring.record_event, args=[CACHE_HIT])
        thread.start()
        thread.join()

    with timings.CompilationLog() as log:
        hit_in_another_thread()
        run_program("f", is_cached=False)
        run_program("g", is_cached=True)
        run_program("h", is_cached=False)
    run_program("i", is_cached=False)
    assert capsys.readouterr().out.splitlines() == [
        "f: traced in 2.00 s",
        "f: compiled in 0.50 s",
        "g: traced in 2.00 s",
        "g: loaded from the cache in 0.50 s",
        "h: traced in 2.00 s",
        "h: compiled in 0.50 s",
    ]
    assert str(log) == "3 programs, 1 of them from the cache, compiled or loaded in 1.5 s"

"""Nothing that is printed ends a command."""

import io
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from engram.cli import main
from engram.cli.output import Output, standard_streams
from engram.errors import EngramError


class Failing(io.StringIO):
    def __init__(self, error):
        super().__init__()
        self.raised = error

    def write(self, text):
        raise self.raised


def test_a_stream_that_fails_is_written_to_no_more():
    output = Output(Failing(OSError(28, "No space left on device")))
    print("a", file=output, flush=True)
    output.stream.raised = AssertionError("written again")
    print("b", file=output)
    with pytest.raises(EngramError, match=r"could be written \(No space left on device\): free"):
        output.check()


def test_a_closed_pipe_is_no_error():
    output = Output(Failing(BrokenPipeError(32, "Broken pipe")))
    Console(file=output).print("a")  # by itself Rich would end the process
    output.check()


def test_a_closed_stream_takes_everything():
    output = Output(None)
    print("a", file=output)
    output.check()
    output.stream.close()
    print("b", file=output)


def test_signs_that_the_encoding_lacks_become_question_marks():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    output = Output(stream)
    print("1 – 2 caf\udce9", file=output)
    output.check()
    assert stream.buffer.getvalue() == b"1 ? 2 caf?\n"


def test_standard_streams_are_put_back():
    before = sys.stdout, sys.stderr
    with pytest.raises(KeyError), standard_streams():
        raise KeyError
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_command_that_cannot_print_says_so(monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as exit:
            main(["--version"])
    assert exit.value.code == 2
    assert "No space left on device" in capsys.readouterr().err


def test_a_command_whose_reader_has_ended_ends_well(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        main(["--version"])

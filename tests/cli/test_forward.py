"""`mirrorq forward` as a user runs it: it is stopped, killed, and misused."""

from __future__ import annotations

import signal
import subprocess

import mirrorq

from .running import COMMAND, COMMAND_S, Started, run_alone


def test_it_ends_at_ctrl_c_and_goes_on_after_a_kill(endpoint: str) -> None:
    with (
        mirrorq.connect(endpoint) as client,
        client.queue("from") as source,
        client.queue("to") as target,
    ):
        bodies = [b"%d" % number for number in range(300)]
        for body in bodies:
            source.put(body)
        arguments = [*COMMAND, "forward", f"{endpoint}/from", f"{endpoint}/to", "--rate", "100"]
        for how in (signal.SIGKILL, signal.SIGINT):
            with Started(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline().startswith(b"moved ")
                process.send_signal(how)
                output, errors = process.communicate(timeout=COMMAND_S)
        assert process.returncode == 0, errors
        assert output.splitlines()[-1].startswith(b"moved ")
        assert source.qsize() + target.qsize() == 300
        done = run_alone("forward", f"{endpoint}/from", f"{endpoint}/to", "--once")
        assert done.returncode == 0, done.stderr
        assert source.qsize() == 0
        assert [message.body for message in target.browse()] == bodies


def test_what_was_typed_wrong(endpoint: str) -> None:
    named = run_alone("forward", endpoint, f"{endpoint}/to")
    assert (named.returncode, b"names no queue" in named.stderr) == (2, True)
    absent = run_alone("forward", f"{endpoint}/absent", f"{endpoint}/to", "--once")
    assert absent.returncode == 1
    assert b"absent" in absent.stderr
    same = run_alone("forward", f"{endpoint}/to", f"{endpoint}/to", "--once")
    assert (same.returncode, b"source and the target" in same.stderr) == (1, True)

"""Signals to ``sparsewire run``: ignored ones stay ignored, and the others leave no process behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launchers import COMMAND, SAY_PID_AND_STAY, staying

from processes import PATIENCE_S, assert_all_gone, ignoring, is_gone, next_line, started

# A rank that ignores SIGTERM, and has a child that does too.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), flush=True)
print(child.pid, flush=True)
time.sleep(600)
"""
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_to_the_launcher_stops_all(script, number):
    with staying(script(SAY_PID_AND_STAY), 2) as (launcher, pids):
        launcher.send_signal(number)
        _, errors = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 128 + number
    assert "Traceback" not in errors
    assert_all_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_at_the_start_is_left_alone_and_sigterm_ends_all(script, number):
    start = ignoring(number.name.removeprefix("SIG"))
    with staying(script(SAY_PID_AND_STAY), 2, start) as (launcher, pids):
        for pid in (launcher.pid, *pids):
            os.kill(pid, number)
        time.sleep(0.5)
        assert not any(is_gone(pid) for pid in (launcher.pid, *pids))
        launcher.terminate()
        _, errors = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors
    assert_all_gone(pids)


@pytest.mark.skipif(shutil.which("nohup") is None, reason="needs nohup")
def test_a_job_under_nohup_survives_the_hang_up_of_its_terminal(script):
    """The job gets SIGHUP in the middle, as when its terminal closes, and ends normally later."""
    path = script("import sys\nprint(0, flush=True)\nimport time; time.sleep(1.5)\nprint('done')")
    with staying(path, 2, lambda command: ["nohup", *command], stdin=subprocess.DEVNULL) as (launcher, _):
        launcher.send_signal(signal.SIGHUP)
        output, errors = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 0, errors
    assert sorted(output.split()) == ["[0]", "[1]", "done", "done"]


def test_a_background_job_of_a_shell_ends_on_sigterm_with_its_ranks(script):
    """A shell without job control starts it with SIGINT ignored; Ctrl-C is for the foreground."""
    words = [*COMMAND, "run", "-n", "2", str(script(SAY_PID_AND_STAY))]
    shell = ["sh", "-c", '"$@" & echo $!; wait $!; echo "code $?"', "sh", *words]
    with started(shell) as process:
        launcher = int(next_line(process))
        pids = [int(next_line(process).split()[1]) for _ in range(2)]
        os.kill(launcher, signal.SIGINT)
        time.sleep(0.5)
        assert not is_gone(launcher)
        os.kill(launcher, signal.SIGTERM)
        assert next_line(process) == f"code {128 + signal.SIGTERM}\n"
        assert_all_gone([launcher, *pids])


@pytest.mark.skipif(shutil.which("setsid") is None, reason="needs setsid")
def test_a_signal_to_the_whole_group_of_a_launcher_ends_all(script):
    """``setsid`` makes the launcher the leader of a group; a service manager signals the whole group."""
    with staying(script(SAY_PID_AND_STAY), 2, lambda command: ["setsid", "-w", *command]) as (first, pids):
        parent = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.killpg(os.getpgid(parent), signal.SIGTERM)
        first.communicate(timeout=PATIENCE_S)
    assert_all_gone([parent, *pids])


@pytest.mark.parametrize("second", ENDING)
def test_a_second_signal_kills_ranks_that_do_not_stop(script, second):
    with staying(script(STUBBORN), 1) as (launcher, pids):
        pids.append(int(next_line(launcher).split()[1]))
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.5)  # the launcher waits for the rank, which ignores SIGTERM
        assert not any(is_gone(pid) for pid in pids)
        launcher.send_signal(second)
        _, errors = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 128 + signal.SIGINT
    assert "Traceback" not in errors
    assert_all_gone(pids)


def test_signals_in_quick_succession_leave_no_process(script):
    """They arrive while the first one is being raised, while ranks are stopped, and at the end."""
    path = script(STUBBORN)
    for gap_s in (0.0, 0.001, 0.01, 0.05):
        with staying(path, 2) as (launcher, pids):
            pids += [int(next_line(launcher).split()[1]) for _ in range(2)]
            for number in ENDING * 5:
                if launcher.poll() is None:
                    launcher.send_signal(number)
                time.sleep(gap_s)
            launcher.communicate(timeout=PATIENCE_S)
        assert launcher.returncode in [128 + number for number in ENDING] + [-number for number in ENDING]
        assert_all_gone(pids)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_while_ranks_are_being_started_leaves_no_process(tmp_path, number):
    """The program sends itself a signal in the middle of starting a rank, after its process exists."""
    program = f"""
import os, signal, subprocess, sys
from sparsewire.launch import local
from sparsewire.launch.signals import leave_by_exception
leave_by_exception()
popen = local._popen
def popen_then_signal(*arguments):
    process = popen(*arguments)
    print(process.pid, flush=True)
    os.kill(os.getpid(), {int(number)})
    return process
local._popen = popen_then_signal
try:
    local.launch([sys.executable, "-c", "import time; time.sleep(600)"], 3)
except KeyboardInterrupt:
    sys.exit(130)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 128 + number, done.stderr
    [pid] = map(int, done.stdout.split())  # no further rank was started
    assert_all_gone([pid])


def test_children_of_a_rank_that_ignore_sigterm_do_not_outlive_it(script):
    path = script(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    with staying(path, 2) as (launcher, children):
        launcher.terminate()
        launcher.communicate(timeout=PATIENCE_S)
    assert_all_gone(children)


def test_a_handler_of_the_program_that_does_not_raise_lets_the_job_go_on():
    program = """
import os, signal, sys
from sparsewire.launch.local import launch
heard = []
signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
def on_line(rank, stream, line):
    os.kill(os.getpid(), signal.SIGHUP)
print(launch([sys.executable, "-c", "print(1); import time; time.sleep(0.5)"], 1, on_line=on_line), heard)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout == f"all ranks ended normally [{int(signal.SIGHUP)}]\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_no_rank_survives_a_launcher_killed_with_kill_9(script):
    with staying(script(SAY_PID_AND_STAY), 3) as (launcher, pids):
        launcher.kill()
        launcher.communicate(timeout=PATIENCE_S)
    assert_all_gone(pids)

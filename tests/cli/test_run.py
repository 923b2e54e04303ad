"""``sparsewire run``: what ranks see, what users see, and that no process is left behind."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import PATIENCE_S, assert_all_gone, next_line, started, with_sigint_ignored
from sparsewire.errors import InputError
from sparsewire.launch.local import Outcome, launch

COMMAND = [sys.executable, "-m", "sparsewire"]
JOB = [
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SPARSEWIRE_SECRET", "OMP_NUM_THREADS"),
]

SAY_PID_AND_STAY = """
import os, time
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


@contextmanager
def staying(script: Path, ranks: int, start: Callable[[list[str]], list[str]] = list):
    """A launcher whose ranks do not end by themselves, and their process ids."""
    command = start([*COMMAND, "run", "-n", str(ranks), str(script)])
    with started(command) as launcher:
        yield launcher, [int(next_line(launcher).split()[1]) for _ in range(ranks)]


def run_python(program: str, size: int, **options: float) -> tuple[Outcome, list[list[str]]]:
    """How the ranks of a program ended, and the lines that each of them wrote."""
    said: list[list[str]] = [[] for _ in range(size)]

    def on_line(rank: int, stream: str, line: bytes) -> None:
        said[rank].append(line.decode())

    outcome = launch([sys.executable, "-c", program], size, on_line=on_line, **options)
    return outcome, said


def test_every_line_carries_its_rank_on_its_own_stream(cli, script):
    path = script("import os, sys; print('out'); print('err', os.environ['RANK'], file=sys.stderr)")
    done = cli("run", "-n", 3, path)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] out", "[1] out", "[2] out"]
    assert sorted(done.stderr.splitlines()) == ["[0] err 0", "[1] err 1", "[2] err 2"]


def test_ranks_find_the_job_in_their_environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    jobs = []
    for _ in range(2):
        _, said = run_python(f"import json, os; print(json.dumps({{n: os.environ[n] for n in {JOB!r}}}))", 2)
        ranks = [json.loads(line) for [line] in said]
        assert [r["RANK"] for r in ranks] == [r["LOCAL_RANK"] for r in ranks] == ["0", "1"]
        for name in ("MASTER_PORT", "SPARSEWIRE_SECRET"):
            assert ranks[0][name] == ranks[1][name]
        jobs.append(ranks[0])
    assert jobs[0]["WORLD_SIZE"] == jobs[0]["LOCAL_WORLD_SIZE"] == "2"
    assert jobs[0]["MASTER_ADDR"] == "127.0.0.1"
    assert jobs[0]["OMP_NUM_THREADS"] == "1"
    assert len(bytes.fromhex(jobs[0]["SPARSEWIRE_SECRET"])) >= 16
    assert jobs[0]["SPARSEWIRE_SECRET"] != jobs[1]["SPARSEWIRE_SECRET"]


def test_threads_that_the_user_asked_for_are_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run_python("import os; print(os.environ['OMP_NUM_THREADS'])", 1) == (Outcome(), [["3"]])


def test_long_output_is_complete_and_in_order_and_an_unfinished_line_counts(cli, script):
    lines = [f"line {number} {'x' * 90}" for number in range(2000)]  # three times what a pipe holds
    path = script(
        "import sys\nfor i in range(2000): print('line', i, 'x' * 90)\nsys.stdout.write('no newline')"
    )
    done = cli("run", "-n", 2, path)
    said = done.stdout.splitlines()
    for rank in ("[0] ", "[1] "):
        assert [line[4:] for line in said if line.startswith(rank)] == [*lines, "no newline"]


def test_last_words_before_a_kill_are_not_lost():
    program = "import os, signal\nprint('last words')\nos.kill(os.getpid(), signal.SIGKILL)"
    assert run_python(program, 1) == (Outcome(128 + signal.SIGKILL, 0, signal.SIGKILL), [["last words"]])


def test_exit_code_is_that_of_the_first_failure_and_all_others_stop(cli, script):
    path = script(
        "import os, sys, time\nprint(os.getpid(), flush=True)\n"
        "time.sleep(600 if os.environ['RANK'] != '2' else 0.5)\nsys.exit(3)"
    )
    done = cli("run", "-n", 4, path)
    assert done.returncode == 3
    assert "rank 2 ended with exit code 3" in done.stderr
    pids = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(pids) == 4
    assert_all_gone(pids)


def test_a_killed_rank_gives_128_plus_its_signal(cli, script):
    path = script(
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)"
    )
    done = cli("run", "-n", 3, path)
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 was killed by SIGKILL" in done.stderr


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace():
    outcome, said = run_python(
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.getpid(), flush=True)\n"
        "sys.stdin.read() if os.environ['RANK'] == '0' else time.sleep(600)\ntime.sleep(0.5)\nsys.exit(7)",
        2,
        grace_s=0.2,
    )
    assert outcome == Outcome(7, 0)
    assert_all_gone([int(line) for [line] in said])


def test_children_of_ranks_stop_too():
    outcome, said = run_python(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600 if os.environ['RANK'] != '1' else 0.5)\nchild.kill()\nsys.exit(1)",
        2,
    )
    assert outcome == Outcome(1, 1)
    assert_all_gone([int(line) for [line] in said])


@pytest.mark.parametrize(
    ("number", "start"),
    [
        (signal.SIGINT, list),
        (signal.SIGINT, with_sigint_ignored),
        (signal.SIGTERM, list),
        (signal.SIGHUP, list),
    ],
    ids=["SIGINT", "SIGINT-in-the-background", "SIGTERM", "SIGHUP"],
)
def test_a_signal_to_the_launcher_stops_all(script, number, start):
    with staying(script(SAY_PID_AND_STAY), 2, start) as (launcher, pids):
        launcher.send_signal(number)
        _, errors = launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 128 + number
    assert "Traceback" not in errors
    assert_all_gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_no_rank_survives_a_launcher_killed_with_kill_9(script):
    with staying(script(SAY_PID_AND_STAY), 3) as (launcher, pids):
        launcher.kill()
        launcher.communicate(timeout=PATIENCE_S)
    assert_all_gone(pids)


def test_ranks_of_a_launcher_that_ignores_sigint_do_not_ignore_it():
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _, said = run_python(program, 2)
    finally:
        signal.signal(signal.SIGINT, ours)
    assert said == [["True"], ["True"]]


def test_a_reader_that_has_seen_enough_ends_the_job_quietly(script):
    path = script("import os\nwhile True: print(os.getpid())")
    with staying(path, 2) as (launcher, pids):
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        launcher.stdout.close()
        assert launcher.stderr.read() == ""
        assert launcher.wait(PATIENCE_S) == 128 + signal.SIGPIPE
    assert_all_gone(pids)


def test_arguments_reach_the_script_untouched(cli, script):
    path = script("import json, sys; print(json.dumps(sys.argv[1:]))")
    arguments = ["-n", "7", "--help", "--", "-m", "a b", "--json=x", "*"]
    done = cli("run", "-n", 1, path, *arguments)
    assert json.loads(done.stdout[4:]) == arguments


def test_a_module_runs_with_its_arguments(cli, tmp_path):
    (tmp_path / "tool.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = cli("run", "-n", 2, "-m", "tool", "-n", "5", "-m", cwd=tmp_path)
    assert Counter(line[4:] for line in done.stdout.splitlines()) == {"__main__ ['-n', '5', '-m']": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "0", "script.py"], "'-n'"),
        (["-n", "-2", "script.py"], "'-n'"),
        (["-n", "four", "script.py"], "'-n'"),
        (["script.py"], "'-n'"),
        (["-n", "2"], "'script'"),
        (["-n", "2", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["--unknown", "-n", "2", "x.py"], "--unknown"),
    ],
)
def test_wrong_use_says_what_is_wrong_and_ends_with_2(command, words, message):
    code, _, errors = command("run", *words)
    assert code == 2
    assert message in errors.lower()
    assert "Traceback" not in errors


def test_a_job_without_ranks_or_with_too_few_namespaces_is_refused():
    with pytest.raises(InputError, match="at least one rank"):
        launch(["true"], 0)
    with pytest.raises(InputError, match="2 namespaces, got 1"):
        launch(["true"], 2, namespaces=["only-one"])

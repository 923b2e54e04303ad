"""``sparsewire run``: what ranks see, what users see, and that no process is left behind."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter

import pytest
from launchers import staying

from processes import PATIENCE_S, assert_all_gone
from sparsewire.errors import InputError
from sparsewire.launch.local import LONGEST_LINE, Outcome, launch

JOB = [
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SPARSEWIRE_SECRET", "OMP_NUM_THREADS"),
]


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


def test_a_line_without_an_end_comes_in_parts_and_does_not_fill_the_memory():
    """A rank writes three and a half times the longest line."""
    parts: list[int] = []
    program = f"import sys\nfor _ in range(7): sys.stdout.write('x' * {LONGEST_LINE // 2})\nprint('end')"
    outcome = launch([sys.executable, "-c", program], 1, on_line=lambda _, __, line: parts.append(len(line)))
    assert outcome == Outcome()
    assert sum(parts) == 7 * LONGEST_LINE // 2 + len("end")
    assert len(parts) == 4
    assert max(parts) < LONGEST_LINE + (1 << 16)


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

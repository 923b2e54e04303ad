"""Events of ranks among whatever else they print."""

from __future__ import annotations

import pytest

from sparsewire.errors import InputError
from sparsewire.launch.events import TAIL_BYTES, TAIL_LINES, EventReader, say
from sparsewire.launch.local import LONGEST_LINE


@pytest.mark.parametrize("line", [b"\x1e", b'\x1e{"done": 3', b"\x1e[1, 2]", b"\x1e\xff", b"hello"])
def test_a_line_that_is_no_event_is_kept_as_text(line):
    events = []
    reader = EventReader(events.append)
    reader.hear(0, "stdout", line)
    assert events == []
    assert reader.tail(0) == line.decode(errors="replace")


def test_only_the_ends_of_the_last_lines_are_kept():
    reader = EventReader(lambda event: None)
    for number in range(100):
        reader.hear(0, "stderr", b"x" * (1 << 20) + b"%d" % number)
    lines = reader.tail(0).splitlines()
    assert [line.lstrip("x") for line in lines] == [str(number) for number in range(100 - TAIL_LINES, 100)]
    assert max(map(len, lines)) == TAIL_BYTES
    held = sum(len(line) for lines in reader._others.values() for line in lines)
    assert held <= TAIL_LINES * TAIL_BYTES


def test_an_event_that_the_launcher_would_break_into_parts_is_refused():
    with pytest.raises(InputError, match="the launcher takes lines up to"):
        say({"found": "x" * LONGEST_LINE})

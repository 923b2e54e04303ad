"""docs/linear.md against the code."""

import re
from pathlib import Path

from sparsewire.linear import LinearSVC, LogisticRegression, Ridge

PAGE = (Path(__file__).parents[2] / "docs" / "linear.md").read_text()


def parameters_of_the_page():
    """The names and defaults in the table of the page."""
    table = PAGE.split("| parameter | default |")[1].split("\n\n")[0]
    for row in table.splitlines()[2:]:
        names, defaults = [cell.strip() for cell in row.split("|")[1:3]]
        yield from zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True)


def test_the_table_has_every_parameter_with_its_default():
    expected = {
        name: value
        for model in (LogisticRegression(), LinearSVC(), Ridge())
        for name, value in model.get_params().items()
    }
    assert {name: eval(default) for name, default in parameters_of_the_page()} == expected


def test_the_first_example_learns():
    [code] = re.findall(r"```python\n(.*?)```", PAGE.split("With many ranks")[0], re.DOTALL)
    *lines, last = code.strip().splitlines()
    names = {}
    exec("\n".join(lines), names)
    assert eval(last, names) > 0.9

"""The pages of README and docs are written in short sentences."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
MOST_WORDS = 30


def prose(page):
    """The page without code, tables, headings and generated figures; a blank line ends every list item."""
    page = re.sub(r"<!-- figures: begin -->.*?<!-- figures: end -->", "\n", page, flags=re.DOTALL)
    page = re.sub(r"^```.*?^```$", "\n", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"^(?: {4}.*|\|.*|#.*)$", "", page, flags=re.MULTILINE)
    return re.sub(r"^(?=(?:[-*]|\d+\.) )", "\n", page, flags=re.MULTILINE)


def sentences(page):
    """A piece of inline code counts as one word, and so does a formula without spaces."""
    for paragraph in re.split(r"\n\s*\n", prose(page)):
        text = re.sub(r"`[^`]+`", "code", paragraph)
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
        yield from re.split(r"(?<=[.?!])[\"*)]*\s+", " ".join(text.split()))


def words(sentence):
    return [word for word in sentence.split() if any(map(str.isalnum, word))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_is_longer_than_thirty_words(page):
    found = list(sentences(page.read_text()))
    assert len(found) > 5
    long = [f"{len(words(s))} words: {s}" for s in found if len(words(s)) > MOST_WORDS]
    assert not long, "\n".join(long)


def test_code_tables_and_figures_are_no_sentences_and_a_list_item_ends_one():
    word = "word " * 20
    page = f"# {word}\n\n{word}\n- {word}\n- {word}. {word}\n\n"
    page += f"```\n{word * 2}\n```\n\n    {word * 2}\n\n| {word * 2} |\n"
    page += f"<!-- figures: begin -->\n{word * 2}\n<!-- figures: end -->\n"
    assert [len(words(sentence)) for sentence in sentences(page) if sentence] == [20, 20, 20, 20]


def test_a_sentence_goes_on_over_lines_and_behind_semicolons_and_colons():
    page = "One `two words`, three;\nfour: five.  (Six.) Seven."
    assert [len(words(sentence)) for sentence in sentences(page)] == [5, 1, 1]

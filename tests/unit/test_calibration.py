"""Figures are found again by whoever they belong to, and a bad file never stops anybody."""

import json
import os
import re
import stat

import pytest

from sparsewire.choosing import calibration
from sparsewire.choosing.calibration import Calibration, Fingerprint
from sparsewire.cost import CostFigures
from sparsewire.errors import SparsewireError

FIGURES = CostFigures(2.0**-14, 2.0**27, 2.0**-15, 2.0**-28, 2.0**-30, 0.5)
TUNED = Calibration(FIGURES, 2.0**30)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sparsewire" / "tuning.json"


def fingerprint(**other):
    facts = {"driver": "tcp", "size": 4, "hosts": 1, "address": "192.0.2.7", "instructions": "avx2"}
    return Fingerprint.here(**(facts | other))


def test_figures_are_found_again(cache):
    assert calibration.save(fingerprint(), TUNED) == cache
    assert calibration.load(fingerprint()) == TUNED


@pytest.mark.parametrize(
    "other",
    [{"driver": "mpi"}, {"size": 5}, {"hosts": 2}, {"address": "192.0.2.8"}, {"instructions": "avx512"}],
    ids=lambda other: next(iter(other)),
)
def test_figures_of_another_fingerprint_are_not_taken(other):
    calibration.save(fingerprint(), TUNED)
    assert calibration.load(fingerprint(**other)).tuned_at == 0


def test_figures_of_different_fingerprints_live_side_by_side():
    other = Calibration(CostFigures(1.0), 3.0)
    calibration.save(fingerprint(), TUNED)
    calibration.save(fingerprint(size=8), other)
    assert calibration.load(fingerprint()) == TUNED
    assert calibration.load(fingerprint(size=8)) == other


def test_the_home_directory_is_used_where_no_cache_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert calibration.cache_file() == tmp_path / "home" / ".cache" / "sparsewire" / "tuning.json"


def test_without_a_file_figures_are_assumed_without_a_word(cache):
    assert not cache.exists()
    assert calibration.load(fingerprint()) == fingerprint().assumed


@pytest.mark.parametrize("driver", ["tcp", "mpi", "local", "unheard-of"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_there_are_figures_to_assume_for_every_driver(driver, hosts):
    assumed = calibration.load(fingerprint(driver=driver, hosts=hosts))
    assert assumed.tuned_at == 0
    assert assumed.network.bandwidth > 0


@pytest.mark.parametrize("driver", ["tcp", "mpi"])
def test_one_host_is_taken_to_be_faster_than_a_network(driver):
    one, several = (fingerprint(driver=driver, hosts=hosts).assumed.network for hosts in (1, 2))
    assert one.bandwidth > several.bandwidth


CORRUPT = {
    "empty": "",
    "not json": "{",
    "another shape": "[1, 2]",
    "no tunings": '{"format": 2}',
    "tunings are a number": '{"format": 2, "tunings": 3}',
    "deep": "[" * 100_000,
    "binary": "\x00\x01",
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_is_one_warning_that_names_it(cache, content):
    cache.parent.mkdir()
    cache.write_text(content)
    with pytest.warns(UserWarning, match=re.escape(str(cache))) as caught:
        assert calibration.load(fingerprint()) == fingerprint().assumed
    assert len(caught) == 1


def test_bytes_that_are_no_text_are_a_warning(cache):
    cache.parent.mkdir()
    cache.write_bytes(b"\xff\xfe\x00")
    with pytest.warns(UserWarning, match=re.escape(str(cache))):
        assert calibration.load(fingerprint()) == fingerprint().assumed


def test_a_directory_in_the_place_of_the_file_is_a_warning(cache):
    cache.mkdir(parents=True)
    with pytest.warns(UserWarning, match=re.escape(str(cache))):
        assert calibration.load(fingerprint()) == fingerprint().assumed


@pytest.mark.parametrize("bad", ["fast", None, -1.0, float("nan"), float("inf"), 0.0], ids=repr)
def test_figures_that_cannot_be_are_a_warning(cache, bad):
    calibration.save(fingerprint(), TUNED)
    content = json.loads(cache.read_text())
    content["tunings"][fingerprint().key]["figures"]["bandwidth"] = bad
    cache.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=re.escape(str(cache))):
        assert calibration.load(fingerprint()) == fingerprint().assumed


def test_an_entry_without_figures_is_a_warning(cache):
    cache.parent.mkdir()
    cache.write_text(json.dumps({"format": calibration.FORMAT, "tunings": {fingerprint().key: {}}}))
    with pytest.warns(UserWarning, match=re.escape(str(cache))):
        assert calibration.load(fingerprint()) == fingerprint().assumed


def test_a_file_of_another_format_is_not_used(cache):
    calibration.save(fingerprint(), TUNED)
    content = json.loads(cache.read_text()) | {"format": calibration.FORMAT - 1}
    cache.write_text(json.dumps(content))
    assert calibration.load(fingerprint()) == fingerprint().assumed


def test_saving_replaces_a_corrupt_file(cache):
    cache.parent.mkdir()
    cache.write_text("{")
    with pytest.warns(UserWarning, match=re.escape(str(cache))):
        calibration.save(fingerprint(), TUNED)
    assert calibration.load(fingerprint()) == TUNED


def test_saving_leaves_nothing_else_behind(cache):
    calibration.save(fingerprint(), TUNED)
    calibration.save(fingerprint(), TUNED)
    assert os.listdir(cache.parent) == [cache.name]


def test_a_place_that_cannot_be_written_is_named(cache):
    cache.parent.write_text("a file where the directory should be")
    with (
        pytest.warns(UserWarning, match="not used"),  # it cannot be read either
        pytest.raises(SparsewireError, match=re.escape(str(cache))),
    ):
        calibration.save(fingerprint(), TUNED)


def test_the_file_has_no_address_in_it(cache):
    calibration.save(fingerprint(address="node17.example.org"), TUNED)
    assert "node17" not in cache.read_text()


def test_the_file_is_its_owners_alone(cache):
    calibration.save(fingerprint(), TUNED)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600


def test_a_calibration_survives_as_numbers():
    numbers = TUNED.to_numbers()
    assert min(numbers) >= 0
    assert Calibration.from_numbers(numbers) == TUNED


def test_a_calibration_says_where_it_comes_from():
    assert str(Calibration(FIGURES, 0.0)).startswith("assumed")
    assert str(Calibration(FIGURES, 86400.0)) == "figures tuned on 1970-01-02 at 00:00 UTC"

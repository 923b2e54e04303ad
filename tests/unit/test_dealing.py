import numpy as np
import pytest

from sparsewire.algorithms.omnireduce.dealing import Deal

HANDS = [1, 2, 3, 4, 7, 8, 100, 4096]
each_number_of_hands = pytest.mark.parametrize("hands", HANDS)


@each_number_of_hands
@pytest.mark.parametrize("first", [0, 2**31 - 3, 2**32 - 3, 2**40, 2**53 + 1])
def test_a_card_is_found_where_it_was_dealt(hands, first):
    cards = first + np.arange(3 * hands + 7)
    hand, turn = Deal(hands).of(cards)
    assert ((hand >= 0) & (hand < hands)).all()
    assert Deal(hands).card(hand, turn).tolist() == cards.tolist()


@each_number_of_hands
def test_every_hand_gets_one_card_of_each_turn(hands):
    hand, turn = Deal(hands).of(np.arange(20 * hands))
    assert turn.tolist() == np.repeat(np.arange(20), hands).tolist()
    assert np.sort(hand.reshape(20, hands)).tolist() == [list(range(hands))] * 20


@each_number_of_hands
def test_a_hand_gets_its_cards_in_order(hands):
    hand, _ = Deal(hands).of(np.arange(20 * hands))
    for one in range(min(hands, 10)):
        assert (np.diff(Deal(hands).card(one, np.arange(20))) > 0).all()
        assert Deal(hands).card(one, np.arange(20)).tolist() == np.flatnonzero(hand == one).tolist()


def test_cards_of_any_integer_type_are_dealt_alike():
    cards = np.arange(100)
    expected = Deal(7).of(cards)
    for dtype in (np.uint32, np.uint64, np.int32):
        assert np.array_equal(Deal(7).of(cards.astype(dtype)), expected)


def test_no_cards_are_dealt_to_nobody():
    hand, turn = Deal(3).of(np.empty(0, np.int64))
    assert (hand.tolist(), turn.tolist()) == ([], [])


def loads(hands, cards):
    return np.bincount(Deal(hands).of(cards)[0], minlength=hands) * hands / len(cards)


@pytest.mark.parametrize("hands", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("pitch", [2, 3, 4, 7, 8, 16, 64, 100, 256, 1000, 4096, 2**16])
def test_cards_at_regular_distances_fall_to_all_hands_alike(hands, pitch):
    load = loads(hands, 5 + pitch * np.arange(256 * hands))
    assert load.max() < 1.3
    assert load.min() > 0.7


@pytest.mark.parametrize("hands", [2, 3, 4, 8])
def test_neighbours_fall_to_all_hands_alike(hands):
    load = loads(hands, 12345 + np.arange(10 * hands))
    assert load.max() <= 1.1


@pytest.mark.parametrize("hands", [2, 3, 4, 7, 8])
def test_no_distance_is_in_step_with_the_deal(hands):
    cards = np.arange(256 * hands) * np.arange(1, 2000)[:, None]
    hand, _ = Deal(hands).of(cards)
    fullest = max(np.count_nonzero(hand == one, axis=1).max() for one in range(hands))
    assert fullest < 1.5 * 256

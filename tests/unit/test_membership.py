"""The agreement of survivors under random schedules of deaths, delays, silence and differing views."""

import random
from collections import deque

import pytest

from sparsewire.drivers.membership import Membership, View
from sparsewire.errors import PeerLostError, TransportError

SEQUENCES = 3000


class World:
    """Ranks that run the protocol, and a network that delivers in order per pair, and in no other order."""

    def __init__(self, size, chance):
        self.size, self.chance = size, chance
        self.ranks = [Membership(rank, size) for rank in range(size)]
        self.alive = set(range(size))
        self.entered = set()
        self.channels = {(a, b): deque() for a in range(size) for b in range(size) if a != b}
        self.told = {}  # what a rank told last
        self.noticed = set()  # (who, dead): pairs in which the end has been noticed

    def enter(self, rank):
        self.entered.add(rank)
        self.tell(rank)

    def tell(self, rank):
        """Tell all others, if there is something new; a rank may die after having told some of them."""
        membership = self.ranks[rank]
        news = (membership.view, membership.decided)
        if membership.failure is not None:
            self.alive.discard(rank)  # it leaves with an error, which others see as its end
        elif self.told.get(rank) != news:
            self.told[rank] = news
            for other in self.chance.sample(range(self.size), self.size):
                if other != rank:
                    self.channels[rank, other].append(news)

    def deliver(self, source, target):
        message = self.channels[source, target].popleft()
        if target not in self.alive:
            return
        membership = self.ranks[target]
        answers = membership.decided and not message[1]
        membership.on_view(source, *message)
        if answers:
            self.channels[target, source].append((membership.view, True))
        self.tell(target)

    def kill(self, rank):
        """What it sent last may be lost, from some message on."""
        self.alive.discard(rank)
        for (source, _), channel in self.channels.items():
            for _ in range(self.chance.choice([0, 0, 1, len(channel)]) if source == rank else 0):
                if channel:
                    channel.pop()

    def notice(self, rank, dead):
        self.noticed.add((rank, dead))
        self.ranks[rank].on_dead([dead])
        self.tell(rank)

    def deliverable(self):
        return [(a, b) for (a, b), channel in self.channels.items() if channel and b in self.entered]

    def unnoticed(self):
        """Ends that can be noticed: a connection ends after the last message."""
        return [
            (rank, dead)
            for rank in self.alive & self.entered
            for dead in range(self.size)
            if dead not in self.alive and (rank, dead) not in self.noticed
            if not self.channels[dead, rank]
        ]

    def settle(self):
        """Everything that is on its way arrives, and every end is noticed."""
        for rank in self.alive - self.entered:
            self.enter(rank)
        while events := [*self.deliverable(), *self.unnoticed()]:
            self.do(self.chance.choice(events))

    def do(self, event):
        (self.deliver if self.channels[event] and event[1] in self.entered else self.notice)(*event)


def run(seed, may_be_silent):
    chance = random.Random(seed)
    world = World(chance.randint(2, 6), chance)
    deaths = chance.randint(0, world.size - 1)
    for _ in range(chance.randint(0, 80)):
        happening = chance.random()
        waiting = sorted(world.alive - world.entered)
        if happening < 0.15 and waiting:
            world.enter(chance.choice(waiting))
        elif happening < 0.22 and deaths and world.alive:
            deaths -= 1
            world.kill(chance.choice(sorted(world.alive)))
        elif happening < 0.27 and may_be_silent and world.alive & world.entered:
            rank = chance.choice(sorted(world.alive & world.entered))
            others = [other for other in range(world.size) if other != rank]
            world.ranks[rank].on_silent(chance.sample(others, chance.randint(1, len(others))))
            world.tell(rank)
        elif events := [*world.deliverable(), *world.unnoticed()]:
            world.do(chance.choice(events))
    world.settle()
    return world


def test_living_ranks_decide_alike_if_only_the_dead_are_held_for_gone():
    for seed in range(SEQUENCES):
        world = run(seed, may_be_silent=False)
        decisions = {world.ranks[rank].view for rank in world.alive}
        assert all(world.ranks[rank].decided for rank in world.alive), seed
        assert len(decisions) <= 1, (seed, decisions)
        assert all(decision.gone.isdisjoint(world.alive) for decision in decisions), seed


def test_silence_leaves_one_working_group_at_most_and_named_ends():
    shrunk = 0
    for seed in range(SEQUENCES):
        world = run(seed, may_be_silent=True)
        working = set()
        for rank, membership in enumerate(world.ranks):
            if membership.failure is not None:
                assert isinstance(membership.failure, TransportError), seed
            elif membership.decided and rank in world.alive:
                group = membership.group
                if all(
                    world.ranks[other].decided
                    and world.ranks[other].view == membership.view
                    and world.ranks[other].failure is None
                    for other in group
                ):
                    working.add(tuple(group))
        assert len(working) <= 1, (seed, working)
        shrunk += bool(working)
        waits = [world.ranks[rank] for rank in world.alive if not world.ranks[rank].decided]
        # Whoever still waits, waits for ranks that it can hold for silent, which ends it.
        for membership in waits:
            membership.on_silent(membership.disagreeing())
            assert membership.decided, seed
    assert shrunk > SEQUENCES / 10  # the checks above have seen groups that work


@pytest.mark.parametrize(
    ("rank", "size", "view", "ends"),
    [
        (0, 4, View(silent=frozenset({2, 3})), False),  # half, with the lowest
        (2, 4, View(silent=frozenset({0, 1})), True),  # half, without it
        (1, 4, View(dead=frozenset({0}), silent=frozenset({3})), False),  # two of three that may be alive
        (3, 4, View(dead=frozenset({0}), silent=frozenset({1, 2})), True),
        (1, 2, View(dead=frozenset({0})), False),
        (1, 2, View(silent=frozenset({0})), True),
    ],
)
def test_a_group_without_silent_ranks_needs_half(rank, size, view, ends):
    group = sorted(set(range(size)) - view.gone)
    membership = Membership(rank, size)
    for other in group:
        if other != rank:
            membership.on_view(other, view)
    membership.on_dead(view.dead)
    membership.on_silent(view.silent)
    assert membership.decided
    assert membership.group == group
    assert (membership.failure is not None) == ends
    if ends:
        assert "cannot tell whether the others go on" in str(membership.failure)


def test_a_rank_that_others_hold_for_gone_is_told():
    membership = Membership(3, 4)
    membership.on_view(1, View(silent=frozenset({3})))
    assert isinstance(membership.failure, PeerLostError)
    assert "the others went on without rank 3" in str(membership.failure)


def test_the_decision_of_a_dead_rank_is_ignored():
    """Otherwise this rank could decide differently from those that have heard of the death only."""
    membership = Membership(1, 3)
    membership.on_dead([0])
    membership.on_view(0, View(), decided=True)
    assert not membership.decided
    membership.on_view(2, View(dead=frozenset({0})))
    assert membership.group == [1, 2]

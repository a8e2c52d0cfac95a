"""The node table against a simple model, and the cases worth a name of their own."""

import os
from stat import S_IFDIR, S_IFLNK, S_IFREG

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gitguardfs.fs.node_table import NodeTable
from gitguardfs.fs.nodes import FIRST_OWN_ID, ROOT_ID, Directory, Node
from gitguardfs.names.rules import Verdict

HOME, OTHER = 7, 8
ROOT_INO = 2


def fake_stat(ino: int, kind: int = S_IFREG, dev: int = HOME, nlink: int = 1) -> os.stat_result:
    return os.stat_result((kind | 0o644, ino, dev, nlink, 0, 0, 0, 0, 0, 0))


def table() -> NodeTable:
    return NodeTable(fake_stat(ROOT_INO, S_IFDIR))


def see(
    nodes: NodeTable,
    parent: Directory,
    name: bytes,
    st_: os.stat_result,
    verdict: Verdict = Verdict.ALLOW,
    *,
    btime_ns: int = 0,
    same: bool = True,
) -> Node:
    node = nodes.get_or_add(
        parent, name, st_, verdict, "" if verdict is Verdict.ALLOW else "git", btime_ns,
        is_same=lambda *_: same,
    )  # fmt: skip
    node.lookup_count += 1
    return node


class Model(RuleBasedStateMachine):
    """A model of what the kernel knows, as dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.table = table()
        self.root = self.table.root
        self.counts: dict[Node, int] = {}
        self.parents: dict[Node, Node] = {}
        """Includes nodes that are forgotten: others may still lie below them."""
        self.meaning: dict[tuple[int, int, bool], Node] = {}
        """The node that (device, inode, guarded) stands for now."""
        self.linked: set[Node] = set()
        """Nodes that were seen at several places while they had several links."""
        self.dropped: set[Node] = set()

    def _known(self) -> list[Node]:
        return [self.root, *self.counts]

    def _below(self, ancestor: Node) -> set[Node]:
        found = {ancestor}
        while more := {n for n, parent in self.parents.items() if parent in found} - found:
            found |= more
        return found & set(self.counts)

    def _mean(self, st_: os.stat_result, verdict: Verdict) -> Node | None:
        node = self.meaning.get((st_.st_dev, st_.st_ino, verdict is not Verdict.ALLOW))
        return node if node is not None and node.matches(st_) else None

    @rule(
        data=st.data(),
        ino=st.sampled_from([1, 3, 4, 5, FIRST_OWN_ID, FIRST_OWN_ID + 1, 2**64 - 1]),
        dev=st.sampled_from([HOME, HOME, OTHER]),
        kind=st.sampled_from([S_IFREG, S_IFDIR, S_IFLNK]),
        nlink=st.sampled_from([1, 1, 2]),
        verdict=st.sampled_from([Verdict.ALLOW, Verdict.ALLOW, Verdict.READONLY, Verdict.DENY]),
        told=st.booleans(),
        same=st.booleans(),
    )
    def see(
        self, data: st.DataObject, ino: int, dev: int, kind: int, nlink: int, verdict: Verdict,
        told: bool, same: bool,
    ) -> None:  # fmt: skip
        directories = [node for node in self._known() if isinstance(node, Directory)]
        parent = self.table.get(data.draw(st.sampled_from(directories)).id)
        st_ = fake_stat(ino, kind, dev, nlink)
        expected = self._mean(st_, verdict)
        restricts = kind == S_IFDIR or nlink == 1
        if expected is not None and restricts and expected.verdict < verdict:
            expected = None
        taken = {node.id for node in self._known()}
        twin = self._mean(st_, Verdict.ALLOW)
        if twin is not None and not (restricts and twin.verdict < verdict):
            twin = None
        is_elsewhere = expected is not None and expected.parent is not parent
        is_doubtful = expected in self.linked and nlink == 1
        if kind != S_IFDIR:
            if (is_elsewhere or is_doubtful) and not same:
                expected = None
            elif is_elsewhere and expected is not None and nlink > 1:
                self.linked.add(expected)
        node = self.table.get_or_add(parent, b"name", st_, verdict, "rule", is_same=lambda *_: same)
        if expected is None:
            natural = verdict is Verdict.ALLOW and dev == HOME and ROOT_ID < ino < FIRST_OWN_ID
            assert node.id not in taken
            assert node.id == ino if natural and ino not in taken else node.id >= FIRST_OWN_ID
            self.counts[node] = 0
        else:
            assert node is expected
        self.meaning[dev, ino, verdict is not Verdict.ALLOW] = node
        self.parents[node] = parent
        assert (node.parent, node.name, node.verdict) == (parent, b"name", verdict)
        if twin is not None:
            del self.meaning[dev, ino, False]
            for inside in self._below(twin) - {node}:
                known = self.table.get(inside.id)
                assert known.verdict >= verdict, "open below what is guarded now"
        if told or self.counts[node]:
            node.lookup_count += 1
            self.counts[node] += 1
        else:
            self.table.drop(node)
            self._gone(node)

    @precondition(lambda self: self.counts)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(list(self.counts)))
        times = data.draw(st.integers(1, self.counts[node]))
        self.counts[node] -= times
        dropped = self.table.forget(node.id, times)
        assert dropped is (None if self.counts[node] else node)
        if dropped is not None:
            self._gone(node)

    @precondition(lambda self: self.counts)
    @rule(data=st.data(), retires=st.booleans())
    def detach(self, data: st.DataObject, retires: bool) -> None:
        node = data.draw(st.sampled_from(list(self.counts)))
        (self.table.retire if retires else self.table.unhash)(node)
        self._lose_meaning(node)

    def _gone(self, node: Node) -> None:
        del self.counts[node]
        self.dropped.add(node)
        self._lose_meaning(node)

    def _lose_meaning(self, node: Node) -> None:
        self.meaning = {key: other for key, other in self.meaning.items() if other is not node}

    @invariant()
    def the_table_is_the_model(self) -> None:
        assert {n.id: n for n in self.table} == {n.id: n for n in self._known()}
        assert len(self.table) == len(self.counts) + 1
        for node, count in self.counts.items():
            assert self.table.get(node.id) is node
            assert node.lookup_count == count

    @invariant()
    def every_object_has_the_meaning_of_the_model(self) -> None:
        for (dev, ino, guarded), node in self.meaning.items():
            assert self.table.find(fake_stat(ino, node.file_type, dev), guarded) is node

    def teardown(self) -> None:
        for node, count in list(self.counts.items()):
            self.table.forget(node.id, count)
        assert len(self.table) == 1
        for node in self.dropped.union(self.counts):
            verdict = node.verdict
            for hidden in (Verdict.DENY, Verdict.HIDE):
                self.table.restrict_known(fake_stat(node.ino, node.file_type, node.dev), hidden, "")
            assert node.verdict is verdict, "the table still had it"


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def test_guarded_again_it_closes_the_view_that_was_open_in_between() -> None:
    nodes = table()
    directory = fake_stat(10, S_IFDIR)
    see(nodes, nodes.root, b".git", directory, Verdict.DENY)
    away = see(nodes, nodes.root, b"x", directory)
    below = see(nodes, away, b"config", fake_stat(11))
    see(nodes, nodes.root, b".git", directory, Verdict.DENY)
    assert (away.verdict, nodes.get(below.id).verdict) == (Verdict.DENY, Verdict.DENY)


def test_a_file_with_another_name_stays_open_under_that() -> None:
    nodes = table()
    open_view = see(nodes, nodes.root, b"a", fake_stat(10, nlink=2))
    see(nodes, nodes.root, b".env", fake_stat(10, nlink=2), Verdict.DENY)
    assert open_view.verdict is Verdict.ALLOW


def test_a_ring_of_places_hangs_nothing() -> None:
    nodes = table()
    a = see(nodes, nodes.root, b"a", fake_stat(10, S_IFDIR))
    b = see(nodes, a, b"b", fake_stat(11, S_IFDIR))
    see(nodes, b, b"a", fake_stat(10, S_IFDIR))
    see(nodes, nodes.root, b".git", fake_stat(12, S_IFDIR), Verdict.DENY)
    see(nodes, nodes.root, b".git", fake_stat(11, S_IFDIR), Verdict.DENY)
    assert (nodes.get(a.id).verdict, b.verdict) == (Verdict.DENY, Verdict.DENY)


@pytest.mark.parametrize("asked_first", range(3))
def test_a_verdict_goes_all_round_a_ring_of_places(asked_first: int) -> None:
    """It does not matter which directory is asked for first."""
    nodes = table()
    a = see(nodes, nodes.root, b"a", fake_stat(10, S_IFDIR))
    b = see(nodes, a, b"b", fake_stat(11, S_IFDIR))
    c = see(nodes, b, b"c", fake_stat(12, S_IFDIR))
    see(nodes, c, b"a", fake_stat(10, S_IFDIR))
    see(nodes, nodes.root, b".git", fake_stat(11, S_IFDIR), Verdict.DENY)
    ring = [a, b, c]
    assert nodes.get(ring[asked_first].id).verdict is Verdict.DENY
    assert [nodes.get(node.id).verdict for node in ring] == [Verdict.DENY] * 3


def test_what_lies_below_takes_a_verdict_over_when_it_is_asked_for() -> None:
    """So the whole table need not be walked when one directory becomes guarded."""
    nodes = table()
    d = see(nodes, nodes.root, b"d", fake_stat(10, S_IFDIR))
    strict = see(nodes, d, b"a", fake_stat(11), Verdict.HIDE)
    plain = see(nodes, d, b"b", fake_stat(12))
    nodes.restrict_below(d, Verdict.DENY, "repository")
    assert plain.verdict is Verdict.ALLOW, "not looked at yet"
    assert nodes.get(plain.id).verdict is Verdict.DENY
    assert nodes.get(strict.id).verdict is Verdict.HIDE, "no verdict is loosened"
    elsewhere = see(nodes, nodes.root, b"c", fake_stat(12))  # a hard link
    assert nodes.get(elsewhere.id).verdict is Verdict.ALLOW


def test_a_number_that_was_used_again_is_a_new_node() -> None:
    nodes = table()
    st_ = fake_stat(10)
    old = see(nodes, nodes.root, b"f", st_, btime_ns=1)
    assert see(nodes, nodes.root, b"f", st_, btime_ns=1) is old
    assert see(nodes, nodes.root, b"f", st_) is old, "not known this time"
    new = see(nodes, nodes.root, b"f", st_, btime_ns=2)
    assert new is not old
    assert new.id != old.id
    assert (new.parent, new.name) == (nodes.root, b"f")


def test_a_replaced_node_is_restricted_with_the_object() -> None:
    nodes = table()
    old = see(nodes, nodes.root, b"a", fake_stat(10))
    between = see(nodes, nodes.root, b"b", fake_stat(10), same=False)
    new = see(nodes, nodes.root, b"c", fake_stat(10), same=False)
    kept = see(nodes, nodes.root, b"secret", fake_stat(10), Verdict.READONLY)
    assert {node.verdict for node in (old, between, new)} == {Verdict.READONLY}
    see(nodes, nodes.root, b".git", fake_stat(10), Verdict.DENY, same=False)
    assert {node.verdict for node in (old, between, new, kept)} == {Verdict.DENY}


@pytest.mark.parametrize("kind", [S_IFREG, S_IFDIR])
def test_what_was_restricted_once_is_restricted_again(kind: int) -> None:
    """Also if it is hidden, so that the last name adds no node."""
    nodes = table()
    found = fake_stat(10, kind)
    plain = see(nodes, nodes.root, b"a", found)
    guarded = see(nodes, nodes.root, b"kept", found, Verdict.READONLY)
    nodes.restrict_known(found, Verdict.HIDE, "hidden")
    assert {plain.verdict, guarded.verdict} == {Verdict.HIDE}
    denied = see(nodes, nodes.root, b".git", found, Verdict.DENY)
    assert see(nodes, nodes.root, b".git", found, Verdict.DENY) is denied

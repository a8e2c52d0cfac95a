"""The bytes of the kernel's session: what it packs is what linux/fuse.h says, whatever the numbers.

The layouts on the other side are those of tests/support/kernel_client.py.
"""

import errno
import os
import re
from pathlib import Path
from stat import S_IFDIR, S_IFREG

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.protocol import NOW, Attributes, DirEntry, EntryReply, RequestError, SetAttr
from gitguardfs.sessions.kernel_session import replies
from gitguardfs.sessions.kernel_session.abi import Opcode
from gitguardfs.sessions.kernel_session.replies import Listing
from gitguardfs.sessions.kernel_session.requests import FORMS
from tests.support import kernel_client
from tests.support.kernel_client import OPCODES, checked, request

HEADER = Path("/usr/include/linux/fuse.h")
WORD, LONG = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
TIME = st.integers(-(2**63) * 10**9, (2**63) * 10**9 - 1)
ATTRIBUTES = st.builds(
    Attributes, ino=LONG, mode=st.sampled_from([S_IFREG | 0o644, S_IFDIR | 0o755]), nlink=WORD,
    uid=WORD, gid=WORD, rdev=WORD, size=LONG, blocks=LONG, blksize=WORD, atime_ns=TIME,
    mtime_ns=TIME, ctime_ns=TIME,
)  # fmt: skip
TIMEOUT = st.floats(0, 1e9)
ENTRIES = st.builds(
    lambda attributes, *timeouts: EntryReply(attributes.ino, attributes, *timeouts),
    ATTRIBUTES.filter(lambda each: each.ino), TIMEOUT, TIMEOUT,
)  # fmt: skip
NAMES = st.binary(min_size=1, max_size=255).filter(lambda name: not {0, 47} & {*name})
LISTED = st.lists(st.tuples(NAMES, st.none() | ENTRIES), max_size=30)


@pytest.mark.skipif(not HEADER.exists(), reason="linux/fuse.h is not installed")
def test_the_opcodes_are_those_of_the_header() -> None:
    text = HEADER.read_text()
    opcodes = text[text.index("enum fuse_opcode") :].partition("}")[0]
    found = {name: int(number) for name, number in re.findall(r"FUSE_(\w+)\s*=\s*(\d+)", opcodes)}
    assert len(found) > 40
    del found["INIT_BSWAP_RESERVED"]
    assert found.items() <= {each.name: each.value for each in Opcode}.items()


def told(entry: EntryReply) -> dict[str, int]:
    assert entry.attributes is not None
    return {f"st_{name}": value for name, value in entry.attributes._asdict().items()}


def same(found: object, entry: EntryReply) -> bool:
    fields = dict(vars(found))
    entry_timeout, attr_timeout = fields.pop("entry_timeout"), fields.pop("attr_timeout")
    assert entry_timeout == pytest.approx(entry.entry_timeout, abs=1e-6)
    assert attr_timeout == pytest.approx(entry.attr_timeout, abs=1e-6)
    return bool(fields == told(entry))


@given(ENTRIES)
def test_an_entry_arrives_as_it_was(entry: EntryReply) -> None:
    unique, error, data = checked(replies.pack_entry(2**64 - 2, entry))
    assert (unique, error) == (2**64 - 2, 0)
    assert same(kernel_client.entry(data), entry)
    _, _, data = checked(replies.pack_attributes(2, entry))
    found = kernel_client.REPLIES["getattr"](data)
    found.entry_timeout = entry.entry_timeout
    assert same(found, entry)


@given(TIMEOUT)
def test_a_negative_entry_has_node_0_and_its_timeout(timeout: float) -> None:
    _, _, data = checked(replies.pack_entry(2, EntryReply(0, None, timeout, 1.0)))
    found = kernel_client.entry(data)
    assert found.st_ino == 0
    assert found.entry_timeout == pytest.approx(timeout, abs=1e-6)


@given(LISTED, st.integers(152, 3000))
def test_a_listing_goes_on_where_it_was_full(
    listed: list[tuple[bytes, EntryReply | None]], room: int
) -> None:
    """No entry is lost or repeated, and each reply fits; a longer one would fail with EINVAL."""
    entries = [
        DirEntry(name, number + 1, reply, S_IFREG, number)
        for number, (name, reply) in enumerate(listed)
    ]
    seen: list[tuple[bytes, object, int]] = []
    while len(seen) < len(entries):
        listing = Listing(room)
        for entry in entries[len(seen) :]:
            if not listing.add(entry):
                break
        _, _, data = checked(listing.packed(2, None))
        assert len(data) <= room
        assert len(data) % 8 == 0
        found = list(kernel_client.entries(data))
        length = len(entries[len(seen)].name)
        assert bool(found) == ((152 + length + 7) // 8 * 8 <= room)
        if not found:
            room += 256  # the kernel asks with a page at least
        seen += found
    assert [offset for *_, offset in seen] == [entry.offset for entry in entries]
    for (name, one, _), entry in zip(seen, entries, strict=True):
        assert name == entry.name
        if entry.reply is None:
            assert (one.st_ino, one.st_mode) == (0, S_IFREG)  # type: ignore[attr-defined]
        else:
            assert same(one, entry.reply)


def test_a_listing_with_no_entry_is_its_end() -> None:
    assert checked(Listing(4096).packed(2, None))[2] == b""


FIELDS = {"mode": 1, "uid": 2, "gid": 4, "size": 8, "atime": 16, "mtime": 32}


@given(
    st.sets(st.sampled_from([*FIELDS])), st.sets(st.sampled_from(["atime", "mtime"])),
    st.booleans(), LONG, LONG, st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**9 - 1), WORD,
)  # fmt: skip
def test_setattr_changes_what_its_bits_say(
    given: set[str], now: set[str], has_handle: bool, handle: int, size: int, seconds: int,
    nanoseconds: int, number: int,
) -> None:  # fmt: skip
    valid = sum(FIELDS[name] for name in given) | has_handle << 6
    valid |= ("atime" in now) << 7 | ("mtime" in now) << 8
    body = kernel_client._pack(
        "IIQQQQQQIIIIIIII", valid, 0, handle, size, 0, seconds, seconds, seconds, nanoseconds,
        nanoseconds, nanoseconds, number, 0, number, number, 0,
    )  # fmt: skip
    sent = request(OPCODES["setattr"], 2, 7, body)
    node, changes, file = FORMS[Opcode.SETATTR].read(7, sent, len(sent))[1]
    time = seconds * 10**9 + nanoseconds
    expected = {
        "mode": number, "uid": number, "gid": number, "size": size,
        "atime": NOW if "atime" in now else time, "mtime": NOW if "mtime" in now else time,
    }  # fmt: skip
    assert (node, file) == (7, handle if has_handle else None)
    assert changes == SetAttr(
        **{f"{name}_ns" if "time" in name else name: expected[name] for name in given}
    )


@given(st.binary(max_size=300), st.integers(0, 300))
def test_a_value_of_an_attribute_fits_or_is_erange(value: bytes, room: int) -> None:
    try:
        _, error, data = checked(replies.pack_sized(room, 2, value))
    except RequestError as raised:
        assert raised.errno == errno.ERANGE
        assert 0 < room < len(value)
        return
    assert not error
    if room:
        assert data == value
        assert len(data) <= room
    else:
        assert data == len(value).to_bytes(8, "little")


@given(st.binary(max_size=100), st.integers(0, 200))
def test_a_write_takes_only_what_its_request_holds(data: bytes, size: int) -> None:
    sent = request(OPCODES["write"], 2, 7, kernel_client._transfer(5, 9, size) + data)
    buffer = sent + bytes(500)
    read = FORMS[Opcode.WRITE].read
    if size > len(data):
        with pytest.raises(ValueError, match="a write of"):
            read(7, buffer, len(sent))
    else:
        assert read(7, buffer, len(sent))[1] == (5, 9, data[:size])


def test_space_arrives_as_it_was() -> None:
    have = os.statvfs("/")
    found = kernel_client.REPLIES["statfs"](checked(replies.pack_space(2, have))[2])
    assert all(getattr(have, name) == value for name, value in vars(found).items())

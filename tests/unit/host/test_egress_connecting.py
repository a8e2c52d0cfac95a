"""Which of a host's addresses is connected to, and in which order they are tried."""

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gitguardfs.host.egress import addresses, connecting, resolved
from gitguardfs.host.egress.allowlist import BlockKind

V6, OTHER_V6, V4, OTHER_V4 = "2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"
HOST = [
    (family, socket.SOCK_STREAM, 0, "", (address, 443))
    for family, address in (
        (socket.AF_INET6, V6),
        (socket.AF_INET6, OTHER_V6),
        (socket.AF_INET, V4),
        (socket.AF_INET, OTHER_V4),
    )
]


class Network:
    """Stands in for an event loop: some addresses are silent, some refuse, the others answer."""

    def __init__(self, silent: set[str] = frozenset(), refusing: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.silent, self.refusing = silent, refusing
        self.tried: list[str] = []
        self.sockets: list[socket.socket] = []

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        self.tried.append(address[0])
        self.sockets.append(sock)
        if address[0] in self.silent:
            await asyncio.Event().wait()
        if address[0] in self.refusing:
            raise ConnectionRefusedError(f"{address[0]} refuses")

    def connect(self) -> None:
        async def connected() -> None:
            (await connecting.first(self, HOST)).close()  # type: ignore[arg-type]

        self.tried.clear()
        asyncio.run(connected())
        assert all(sock.fileno() == -1 for sock in self.sockets)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connecting, "_dead", {})
    monkeypatch.setattr(connecting, "DELAY", 0.01)
    yield


def test_families_take_turns() -> None:
    assert [answer[4][0] for answer in connecting.ordered(HOST)] == [V6, V4, OTHER_V6, OTHER_V4]


def test_the_first_that_answers_is_the_only_one_tried() -> None:
    network = Network()
    network.connect()
    assert network.tried == [V6]


def test_a_silent_address_does_not_keep_the_next_one_waiting_and_is_the_last_afterwards() -> None:
    network = Network(silent={V6, OTHER_V6})
    network.connect()
    assert network.tried == [V6, V4]
    network.connect()
    assert network.tried == [V4]
    assert [answer[4][0] for answer in connecting.ordered(HOST)] == [V4, OTHER_V6, OTHER_V4, V6]


def test_what_was_dead_is_tried_again_if_the_others_are_and_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Network(refusing={V6}).connect()
    network = Network(refusing={OTHER_V6, V4, OTHER_V4})
    network.connect()
    assert network.tried[-1] == V6
    network.connect()
    assert network.tried == [V6]
    Network(refusing={V6}).connect()
    monkeypatch.setattr(connecting, "DEAD_FOR", 0.0)
    network = Network()
    network.connect()
    assert network.tried == [V6]


def test_if_all_refuse_the_reason_is_that_of_one() -> None:
    with pytest.raises(ConnectionRefusedError, match="refuses"):
        Network(refusing={V6, OTHER_V6, V4, OTHER_V4}).connect()


def test_a_client_that_gives_up_leaves_no_socket_open() -> None:
    network = Network(silent={V6, OTHER_V6, V4, OTHER_V4})

    async def given_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connecting.first(network, HOST)  # type: ignore[arg-type]

    asyncio.run(given_up())
    assert len(network.sockets) == len(HOST)
    assert all(sock.fileno() == -1 for sock in network.sockets)


# A name that leads astray


@pytest.mark.parametrize(
    ("host", "found", "kind"),
    [
        ("api.openai.com", ["0.0.0.0"], BlockKind.SINKHOLE),
        ("api.openai.com", ["::"], BlockKind.SINKHOLE),
        ("api.openai.com", ["127.0.0.1"], BlockKind.SINKHOLE),
        ("api.openai.com", ["10.0.0.1"], BlockKind.MISLED),
        ("api.openai.com", ["0.0.0.0", "192.168.1.1"], BlockKind.MISLED),
        ("api.openai.com", ["fd00::1", "::1"], BlockKind.MISLED),
        ("git.corp.example", ["10.0.0.1"], BlockKind.ADDRESS),
        ("nas.local", ["192.168.1.9"], BlockKind.ADDRESS),
        ("router.home.arpa", ["192.168.1.1"], BlockKind.ADDRESS),
        ("registry", ["10.0.0.1"], BlockKind.ADDRESS),
        ("10.0.0.1", ["10.0.0.1"], BlockKind.ADDRESS),
        ("nas.local", ["127.0.0.1"], BlockKind.REQUEST),
        ("api.openai.com", [], BlockKind.REQUEST),
    ],
)
def test_a_public_name_without_a_public_address_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch, host: str, found: list[str], kind: BlockKind
) -> None:
    error = refusal(monkeypatch, host, found)
    assert error.kind is kind
    is_told = kind in (BlockKind.MISLED, BlockKind.SINKHOLE)
    assert ("a DNS block or a captive portal?" in str(error)) == is_told
    assert (addresses.PRIVATE_WORD in str(error)) == (kind is BlockKind.ADDRESS)
    assert host in str(error)


def refusal(
    monkeypatch: pytest.MonkeyPatch, host: str, found: list[str]
) -> resolved.BlockedAddressError:
    async def answers(*_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (one, 443)) for one in found]

    monkeypatch.setattr(resolved, "answers_of", answers)
    with pytest.raises(resolved.BlockedAddressError) as error:
        asyncio.run(resolved.usable_answers(host, 443, is_private_allowed=False))
    return error.value


def test_a_line_with_its_word_lets_a_public_name_lead_into_the_users_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answers(*_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.1", 443))]

    monkeypatch.setattr(resolved, "answers_of", answers)
    usable, is_private = asyncio.run(
        resolved.usable_answers("git.company.com", 443, is_private_allowed=True)
    )
    assert len(usable) == 1 and is_private

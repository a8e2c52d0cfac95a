"""Placeholders in requests: the value gets to one place of one host, and to no other."""

import base64
import contextlib
import itertools
import urllib.parse
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.host.credentials.secrets import Kind, Place, Secret
from gitguardfs.host.egress import exchange, masks
from gitguardfs.host.egress.exchange import BodySearch, Head, MisplacedError
from gitguardfs.host.egress.masks import Masks
from gitguardfs.host.egress.requests import CheckedRequest

HOST = "api.example.org"
VALUE = b"the/value+itself 100%"
PLACES = (
    Place(HOST, 443, Kind.BEARER, "Bearer"),
    Place(HOST, 443, Kind.BASIC, "me"),
    Place(HOST, 443, Kind.HEADER, "X-Api-Key"),
    Place(HOST, 443, Kind.QUERY, "key"),
)
SECRET = Secret("TOKEN", "gitguard-secret-TOKEN-" + "0123456789abcdef" * 2, PLACES, "the keyring")
OTHER = Secret("OTHER", "gitguard-secret-OTHER-" + "a0" * 16, (PLACES[2],), "the keyring")
FOREIGN = b"gitguard-secret-TOKEN-" + b"b1" * 16
"""A placeholder of another VM, or of a secret that was removed."""
P = SECRET.placeholder.encode()


def basic(user: bytes, password: bytes) -> bytes:
    return b"Basic " + base64.b64encode(user + b":" + password)


def head(target: bytes = b"/v1", *fields: tuple[bytes, bytes]) -> Head:
    return Head(target, ((b"Host", HOST.encode()), *fields))


def request(scheme: str = "https", host: str = HOST, port: int = 443) -> CheckedRequest:
    return CheckedRequest("GET", scheme, host, port, "/v1")


def sent(
    before: Head, asked: CheckedRequest | None = None, secrets: tuple[Secret, ...] = (SECRET,)
) -> Head:
    result = before
    for use in exchange.uses(asked or request(), before, secrets):
        result = use.put(result, VALUE if use.secret is SECRET else b"other-value")
    return result


RIGHT = {
    "bearer": (
        head(b"/v1", (b"Authorization", b"Bearer " + P)),
        head(b"/v1", (b"Authorization", b"Bearer " + VALUE)),
    ),
    "bearer, as it is written": (
        head(b"/v1", (b"authorization", b"bearer " + P)),
        head(b"/v1", (b"authorization", b"bearer " + VALUE)),
    ),
    "basic": (
        head(b"/v1", (b"Authorization", basic(b"me", P))),
        head(b"/v1", (b"Authorization", basic(b"me", VALUE))),
    ),
    "header": (
        head(b"/v1", (b"a", b"b"), (b"x-api-key", P), (b"c", b"d")),
        head(b"/v1", (b"a", b"b"), (b"x-api-key", VALUE), (b"c", b"d")),
    ),
    "query": (
        head(b"/v1?a=b&key=" + P + b"&keys=1"),
        head(b"/v1?a=b&key=the%2Fvalue%2Bitself%20100%25&keys=1"),
    ),
    "none": (head(b"/v1?key=1", (b"X-Api-Key", b"2")), head(b"/v1?key=1", (b"X-Api-Key", b"2"))),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in RIGHT if name != "none"])
@pytest.mark.parametrize(
    "asked",
    [
        request("http"), request("http", port=80), request(host="other.example.org"),
        request(port=8443), request(host="api.example.org.evil.test"),
    ],
    ids=str,
)  # fmt: skip
def test_to_another_host_port_or_scheme_nothing_is_sent(name: str, asked: CheckedRequest) -> None:
    with pytest.raises(MisplacedError, match="TOKEN"):
        sent(RIGHT[name][0], asked)


@pytest.mark.parametrize(
    "wrong",
    [
        head(b"/v1", (b"X-Api-Key", P), (b"X-Api-Key", b"2")),
        head(b"/v1?key=" + P + b"&key=2"),
        head(b"/v1", (b"Authorization", b"Token " + P)),
        head(b"/v1", (b"Authorization", basic(b"you", P))),
    ],
    ids=["two fields", "two parameters", "another word", "another user"],
)
def test_where_it_does_not_belong_nothing_is_sent(wrong: Head) -> None:
    with pytest.raises(MisplacedError, match="TOKEN"):
        sent(wrong)


def escaped(text: bytes) -> bytes:
    return b"".join(b"%%%02X" % byte for byte in text)


@pytest.mark.parametrize(
    "text",
    [FOREIGN, escaped(FOREIGN), base64.b64encode(FOREIGN)],
    ids=["plain", "escaped", "base64"],
)
def test_a_placeholder_that_the_vm_does_not_know_is_not_sent(text: bytes) -> None:
    for secrets in ((), (SECRET,)):
        with pytest.raises(MisplacedError, match="does not have"):
            sent(head(b"/", (b"X-Api-Key", text)), secrets=secrets)
    with pytest.raises(MisplacedError, match="does not have"):
        sent(head(b"/?key=" + text), secrets=())


def wire(what: Head) -> list[bytes]:
    """What a server can read out of a head."""
    texts = [what.target, *(part for field in what.fields for part in field)]
    for text in list(texts):
        texts.append(urllib.parse.unquote_to_bytes(text))
        if text.lower().startswith(b"basic "):
            with contextlib.suppress(ValueError):
                texts.append(base64.b64decode(text.partition(b" ")[2] + b"=="))
    return texts


FILLER = st.sampled_from([b"", b"x", b" ", b"&", b"=", b"%", b"key=", b"Bearer ", b"Basic ", b":"])
FORM = st.sampled_from(
    [P, escaped(P), P.upper(), base64.b64encode(b"me:" + P), base64.b64encode(P), b"", b"value"]
)
TEXT = st.lists(FILLER | FORM, max_size=4).map(b"".join)
NAMES = st.sampled_from([b"Authorization", b"authorization", b"X-Api-Key", b"Cookie", b"Via", P])
HOSTS = st.sampled_from([request(), request(port=444), request("http"), request(host="b.test")])


@settings(max_examples=600)
@given(
    st.lists(st.sampled_from([b"key=", b"q="]) | TEXT, max_size=4).map(b"".join),
    st.lists(st.tuples(NAMES, TEXT), max_size=3),
    HOSTS,
)
def test_wherever_it_is_put_the_value_gets_to_one_place_only(
    query: bytes, fields: list[tuple[bytes, bytes]], asked: CheckedRequest
) -> None:
    before = head(b"/v1?" + query, *fields)
    try:
        after = sent(before, asked)
    except MisplacedError:
        return
    assert not any(P.lower() in text.lower() for text in wire(after))
    found = [text for text in wire(after) if VALUE in text]
    if not found:
        assert after == before
        return
    assert asked == request()
    changed = [n for n, field in enumerate(before.fields) if field != after.fields[n]]
    assert len(changed) + (before.target != after.target) == 1
    if changed:
        name, value = after.fields[changed[0]]
        whole = {
            b"authorization": (b"bearer " + VALUE, basic(b"me", VALUE)), b"x-api-key": (VALUE,),
        }[name.lower()]  # fmt: skip
        assert value.lower() in {one.lower() for one in whole}
        assert [field[0].lower() for field in after.fields].count(name.lower()) == 1
    else:
        parameters = urllib.parse.parse_qsl(after.target.partition(b"?")[2], True)
        assert [value for name, value in parameters if VALUE in name + value] == [VALUE]
        assert dict(parameters)[b"key"] == VALUE


@settings(max_examples=200)
@given(
    st.binary(max_size=30), st.binary(max_size=30), st.lists(st.integers(0, 140), max_size=6),
    st.booleans(),
)  # fmt: skip
def test_a_body_is_searched_across_its_parts(
    before: bytes, after: bytes, cuts: list[int], there: bool
) -> None:
    text = before + (P if there else P[:-1] + b"~") + after
    search = BodySearch({"OTHER": [OTHER.placeholder.encode(), b"x"], "TOKEN": [P.lower()]})
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    said = [search.found(text[a:b]) for a, b in itertools.pairwise(edges)]
    assert any("TOKEN" in one for one in said) == there
    if there:  # before the last of it has left
        first = next(n for n, one in enumerate(said) if "TOKEN" in one)
        assert len(P) + len(before) <= edges[first + 1]
        assert edges[first] < len(P) + len(before)


@pytest.mark.parametrize("escape", ["%{:02x}", "%{:02X}", r"\u{:04x}", r"\u{:04X}", "%5Cu{:04x}"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_word_in_a_body_is_found_if_it_is_escaped(escape: str, size: int) -> None:
    body = b'{"a": "' + "".join(map(escape.format, b"Some/Value")).encode() + b'"}'
    if size < 1000 and "%5C" in escape:
        return  # in parts only what is escaped once
    for text in (body, body[:30] + b"x" + body[30:]):
        search = BodySearch({"A": [b"some/value"], "B": [b"other"]})
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert set().union(*map(search.found, parts)) == ({"A"} if text is body else set())
    assert BodySearch({"A": [b"some/value"]}).found(rb"Some\/value") == {"A"}


@pytest.mark.parametrize("before", ["", "x", "/", "/redirect/", "/un-safe/", "/_/"])
def test_a_guess_is_found_in_base64_wherever_that_begins(before: str) -> None:
    text = base64.urlsafe_b64encode(b"https://other.test/b0b0abcd").rstrip(b"=")
    assert exchange.is_in(head(before.encode() + text), [b"b0b0abcd"])


def test_a_guess_is_found_in_the_json_of_a_field() -> None:
    field = (b"Dropbox-API-Arg", rb'{"path": "\u0062\u0030b0abcd"}')
    assert exchange.is_in(head(b"/", field), [b"b0b0abcd"])


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.kind.value)
def test_a_guess_is_found_in_all_forms_that_are_masked(place: Place) -> None:
    value = r"it's the\Value"
    secret = replace(SECRET, places=(place,))
    words = masks.forms(secret, value)
    for form in masks._masking(secret, place, value):
        for guess in (form, form.upper(), escaped(form), base64.b64encode(form)):
            before = head(b"/?q=" + guess.replace(b" ", b"+"), (b"X", b"y"))
            assert exchange.is_in(head(b"/", (b"X", b"<%b>" % guess)), words), guess
            assert b" " in guess or exchange.is_in(before, words), guess
    assert not exchange.is_in(head(b"/?q=" + P, (b"X", P)), words)


def test_of_two_values_the_longer_is_masked_first() -> None:
    own = Masks()
    own.add(exchange.Use(SECRET, PLACES[2]), "correct-horse")
    own.add(exchange.Use(OTHER, PLACES[0]), "correct-horse-battery-staple")
    assert own.masked(b"correct-horse-battery-staple") == OTHER.placeholder.encode()
    assert own.masked(b"correct-horse") == P


def test_a_value_that_looks_like_a_length_does_not_change_one() -> None:
    own = Masks()
    own.add(exchange.Use(SECRET, PLACES[2]), "keep-alive")
    kept = ((b"Connection", b"keep-alive"), (b"content-length", b"keep-alive"))
    assert own.masked_fields((*kept, (b"X", b"keep-alive"))) == (*kept, (b"X", P))


@pytest.mark.parametrize("name", [b"Connection", b"Upgrade", b"X"])
def test_a_field_of_the_connection_does_not_hold_a_value_either(name: bytes) -> None:
    own = Masks()
    own.add(exchange.Use(SECRET, PLACES[2]), "correct-horse")
    assert own.masked_fields(((name, b"correct-horse"),)) == ((name, P),)

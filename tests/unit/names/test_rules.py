"""The verdicts of rules, and names that complete a repository."""

import errno
import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.names.rules import GitMode, GuardRules, Refused, RuleSet, Verdict

FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
ALLOW, READONLY, DENY, HIDE = Verdict.ALLOW, Verdict.READONLY, Verdict.DENY, Verdict.HIDE


def test_stricter_verdicts_are_larger() -> None:
    assert ALLOW < READONLY < DENY < HIDE


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [
        (GitMode.DENY, DENY),
        (GitMode.LIST, DENY),
        (GitMode.READONLY, READONLY),
        (GitMode.HIDE, HIDE),
        (GitMode.PRIVATE, DENY),
        (GitMode.OFF, ALLOW),
    ],
)
@pytest.mark.parametrize("name", [b".git", b".GIT", b"git~1", b".git.", ".g\u200cit".encode()])
def test_each_policy_for_git(policy: GitMode, verdict: Verdict, name: bytes) -> None:
    guard = RuleSet(GuardRules(git=policy))
    assert guard.verdict_of_name(name)[0] is verdict
    assert guard.is_dotgit(name) == (policy is not GitMode.OFF)
    assert guard.guards_git == (policy is not GitMode.OFF)


GLOBS = GuardRules(
    deny=("*.pem", ".env", "?.key", "id_[re]*", "gru\u00df-*"),
    protect=(".husky", "*.lock"),
    hide=("secret*", "b.lock"),
)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (b".env", DENY), (b".ENV", DENY), (b".Env", DENY), (b".env2", ALLOW), (b"x.env", ALLOW),
        (b"a.pem", DENY), (b".pem", DENY), (b"A.PEM", DENY), (b"a.pem.txt", ALLOW),
        (b"a\n.pem", DENY), (b"a.pem\n", ALLOW),
        (b"id_rsa", DENY), (b"ID_ED25519", DENY), (b"id_xyz", ALLOW),
        (b".husky", READONLY), (b"yarn.lock", READONLY), (b"b.lock", HIDE),
        (b"secrets", HIDE), (b"SECRET", HIDE), (b"main.c", ALLOW), (b"", ALLOW),
        # not UTF-8, before, within and after
        (b"\xff.pem", DENY), (b"a\xff.pem", DENY), (b"\xff\xfe", ALLOW), (b"secret\xff", HIDE),
        # one character is one character
        (b"a.key", DENY), ("\u00e9.key".encode(), DENY), (b"\xff.key", DENY), (b"ab.key", ALLOW),
        # any case, in any script
        ("gru\u00df-a".encode(), DENY), ("GRU\u00df-A".encode(), DENY),
        # as NTFS and FAT fold them
        (b".env.", DENY), (b".ENV . .", DENY), (b".env::$DATA", DENY), (b"a\\.env", DENY),
        (b"a\\.env.:x", DENY), (b"a.pem ", DENY), (b"secret.", HIDE), (b".env .x", ALLOW),
        (b". .", ALLOW), (b":", ALLOW), (b"\\", ALLOW), (b"a:.env", ALLOW),
        # as HFS+ folds them
        (".e\u200cnv".encode(), DENY),
    ],
)  # fmt: skip
def test_globs(name: bytes, verdict: Verdict) -> None:
    assert RuleSet(GLOBS).verdict_of_name(name)[0] is verdict


HIDE_SECRETS = GuardRules(
    hide_secrets=True, show=("prod.env", "id_d*"), hide=("shown.env",), deny=("*.key", ".env.d")
)


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (b".env", HIDE), (b".ENV", HIDE), (b".env.local", HIDE), (b"a.env", HIDE),
        (b".envrc", HIDE), (b"id_rsa", HIDE), (b".netrc", HIDE), (b"a.p12", HIDE),
        (b".git-credentials", HIDE), (b".env.example", ALLOW), (b".env.template", ALLOW),
        (b".env.sample", ALLOW), (b"id_rsa.pub", ALLOW), (b"a.pem", ALLOW),
        (b".npmrc", ALLOW), (b"env", ALLOW),
        # copies, also of an editor
        (b".env~", HIDE), (b".envrc.bak", HIDE), (b"id_rsa~", HIDE), (b".id_rsa.swp", HIDE),
        (b"#.env#", HIDE), (b"a.tfstate.backup", HIDE), (b".environment", ALLOW),
        (b".bak", ALLOW), (b".env2", ALLOW),
        # in the spellings of other hosts
        (b".env.", HIDE), (b".env::$DATA", HIDE), (".e\u200cnv".encode(), HIDE),
        (b"a\\.env", HIDE), ("\uff0eenv".encode(), HIDE),
        # what is shown in all its spellings, and no other
        (b"prod.env", ALLOW), (b"PROD.env.", ALLOW), (b"prod.env.local", HIDE),
        (b"xprod.env", HIDE),
        (b"id_dsa", ALLOW), (b"shown.env", HIDE),
        # the strictest rule counts
        (b"a.key", DENY), (b".env.d", HIDE), (b".git", DENY),
    ],
)  # fmt: skip
def test_secrets_are_hidden_by_their_names(name: bytes, verdict: Verdict) -> None:
    guard = RuleSet(HIDE_SECRETS)
    assert guard.verdict_of_name(name)[0] is verdict
    assert guard.is_plain(name) == (verdict is ALLOW)
    assert guard.is_listed(name) == (verdict not in (HIDE, DENY) or name == b"a.key")
    if verdict is HIDE and name != b"shown.env":
        assert RuleSet(GuardRules()).verdict_of_name(name)[0] is ALLOW


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        ("\u00c4rger*", "\u00e4rger.txt"),
        ("caf[\u00e9e]", "caf\u00e9"),
        ("\U0001f469\u200d\U0001f4bb", "\U0001f469\u200d\U0001f4bb"),
        ("\udcff*", "\udcffx"),
    ],
)
def test_globs_of_any_characters(glob: str, name: str) -> None:
    guard = RuleSet(GuardRules(deny=(glob,)))
    assert guard.verdict_of_name(name.encode("utf-8", "surrogateescape"))[0] is DENY


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("clé.pem", ("clé.pem", "CLÉ.PEM", "clé.pem.", "a\\clé.pem", "clé.pem::$DATA")),
        ("cl?.pem", ("clé.pem", "CLÉ.pem", "cl\udcff.pem")),
        ("cl[é].pem", ("clé.pem", "CLÉ.pem")),
        ("été*", ("été", "ÉTÉ-2.txt")),
        ("*é??", ("été22", "é\udcff\udcff")),
        ("한글?", ("한글1", "한글글")),
        ("straße", ("straße", "STRASSE", "Stra\u1e9ee")),
        (".env", (".ｅｎｖ", ".e\u200dnv")),
        ("ﬁle", ("file", "ﬁle", "FILE")),
        ("cle\u0301", ("clé",)),
    ],
)
def test_globs_match_a_name_in_every_normal_form(glob: str, names: tuple[str, ...]) -> None:
    for text in (glob, unicodedata.normalize("NFC", glob), unicodedata.normalize("NFD", glob)):
        guard = RuleSet(GuardRules(deny=(text,)))
        for name in names:
            for form in (name, *(unicodedata.normalize(form, name) for form in FORMS)):
                raw = form.encode("utf-8", "surrogateescape")
                assert guard.verdict_of_name(raw)[0] is DENY, (text, form)


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        ("clé.pem", "cle.pem"), ("cl[é].pem", "cle.pem"), ("cl[é].pem", "cl\u0301.pem"),
        ("secret？", "secretx"), ("＊.txt", "a.txt"), ("［ab］", "a"), ("é", "éé"),
    ],
)  # fmt: skip
def test_normal_forms_add_no_other_names(glob: str, name: str) -> None:
    assert RuleSet(GuardRules(deny=(glob,))).verdict_of_name(name.encode())[0] is ALLOW


def test_the_strictest_rule_wins_and_is_named() -> None:
    guard = RuleSet(GuardRules(git=GitMode.READONLY, deny=(".g*",), hide=(".git",), protect=("*",)))
    assert guard.verdict_of_name(b".git") == (HIDE, "--hide .git")
    assert guard.verdict_of_name(b".gx") == (DENY, "--deny .g*")
    assert guard.verdict_of_name(b"x") == (READONLY, "--protect *")
    assert RuleSet(GuardRules()).verdict_of_name(b".git") == (DENY, "git")


def test_globs_hold_when_git_is_off() -> None:
    guard = RuleSet(GuardRules(git=GitMode.OFF, deny=(".git*",)))
    assert guard.verdict_of_name(b".git")[0] is DENY


@given(st.text(max_size=12), st.binary(max_size=12))
def test_no_glob_raises(glob: str, name: bytes) -> None:
    assert RuleSet(GuardRules(deny=(glob,))).verdict_of_name(name)[0] in Verdict


@given(st.binary(max_size=30))
def test_no_name_raises(name: bytes) -> None:
    assert RuleSet(GLOBS).verdict_of_name(name)[0] in Verdict


def test_a_refusal_is_eacces_and_says_why() -> None:
    refused = Refused("git", lambda: b"a/.git")
    assert isinstance(refused, OSError) and refused.errno == errno.EACCES
    assert (refused.rule, refused.where()) == ("git", b"a/.git")

"""The syntax of --map and -o."""

import grp
import pwd
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitguardfs.base.errors import Exit, UserError
from gitguardfs.base.protocol import GuestUid, ShareGid, ShareUid
from gitguardfs.options.id_maps import IdMapSpec, parse_maps
from gitguardfs.options.parsing import parse_o, quote_o, split_o


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    """ann has user id 1000 and group 100, bob 1001 and 101; a group dev has 50."""
    ids = {"ann": (1000, 100), "bob": (1001, 101)}

    def user(name: str) -> pwd.struct_passwd:
        uid, gid = ids[name]
        return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))

    def group(name: str) -> grp.struct_group:
        return grp.struct_group((name, "x", {"dev": 50, "ann": 100}[name], []))

    monkeypatch.setattr(pwd, "getpwnam", user)
    monkeypatch.setattr(grp, "getgrnam", group)


MAPS: list[tuple[list[str], list[tuple[int, int]], list[tuple[int, int]]]] = [
    ([], [], []),
    (["1000:1001"], [(1000, 1001)], [(1000, 1001)]),
    (["0:0"], [(0, 0)], [(0, 0)]),
    (["@20:@1000"], [], [(20, 1000)]),
    (["501:1000,@20:@50"], [(501, 1000)], [(501, 1000), (20, 50)]),
    (["501:1000", "@20:@50"], [(501, 1000)], [(501, 1000), (20, 50)]),
    (["501:1000, 502:1001"], [(501, 1000), (502, 1001)], [(501, 1000), (502, 1001)]),
    (["501/1000"], [(501, 1000)], []),
    (["@20/@1000"], [], [(20, 1000)]),
    (["501/1000:@20/@1000"], [(501, 1000)], [(20, 1000)]),
    (["501/1000:502/1001:@20/@1000"], [(501, 1000), (502, 1001)], [(20, 1000)]),
    (["@20/@50:501/1000"], [(501, 1000)], [(20, 50)]),
    (["501/1000,502:1001"], [(501, 1000), (502, 1001)], [(502, 1001)]),
    (["501:ann"], [(501, 1000)], [(501, 100)]),
    (["bob:ann"], [(1001, 1000)], [(101, 100)]),
    (["@20:@dev"], [], [(20, 50)]),
    (["bob/ann:@20/@dev"], [(1001, 1000)], [(20, 50)]),
]


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(("specs", "uids", "gids"), MAPS)
def test_maps(specs: list[str], uids: list[tuple[int, int]], gids: list[tuple[int, int]]) -> None:
    assert parse_maps(specs) == IdMapSpec(tuple(uids), tuple(gids))


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    "specs",
    [
        [""], ["1000"], ["1000:"], [":1000"], ["1:2:3"], ["1000:1001,"], [",1:2"], ["1/2/3"],
        ["@1:2"], ["1:@2"], ["@1/2"], ["1/2:@3"], ["@:@"], ["@"], ["-1:2"], ["1.5:2"],
        ["carol:1000"], ["1000:carol"], ["@nogroup:@1"], ["carol/1:@1/@2"],
        ["1:2", "1:3"], ["1:2,3:2"], ["1/2:1/3"], ["@1:@2,@1:@3"], ["1:2,@1:@3"],
        ["4294967295:0"], ["0:4294967295"], ["99999999999999999999:0"],
        ["auto", "1:2"], ["auto,1:2"], ["auto,auto"], ["Auto"], ["\u0661:2"],
    ],
)  # fmt: skip
def test_malformed_and_contradictory_maps_are_one_line(specs: list[str]) -> None:
    with pytest.raises(UserError) as error:
        parse_maps(specs)
    assert error.value.code is Exit.USAGE
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("maps", "missing"),
    [
        (["1000:1001"], "1001/1000:@1001/@1000"), (["1000:1000"], ""), ([], ""),
        (["501/1000:@20/@1000"], "1000/501:@1000/@20"), (["1:2,2:1"], ""),
        (["1/2:2/3"], "3/1"), (["auto"], ""),
    ],
)  # fmt: skip
def test_what_would_keep_ids_apart(maps: list[str], missing: str) -> None:
    assert parse_maps(maps).missing == missing
    if missing:
        assert parse_maps([*maps, missing]).missing == ""


def test_auto_makes_the_owner_of_the_source_the_owner_of_the_mount_point() -> None:
    spec = parse_maps(["auto"])
    assert spec == IdMapSpec(auto=True)
    idmap = spec.resolve((501, 20), (1000, 1001))
    assert idmap.guest_ids(ShareUid(501), ShareGid(20)) == (1000, 1001)
    assert idmap.share_uid(GuestUid(1000)) == 501
    assert idmap.guest_ids(ShareUid(1000), ShareGid(1001)) == (501, 20), "nobody else's are shown"
    assert IdMapSpec(((1, 2),)).resolve((501, 20), (1000, 1001)).guest_ids(
        ShareUid(501), ShareGid(20)
    ) == (501, 20)


# What mount(8), mount.fuse3, libmount and systemd may hand on, and what it comes to.
GENERIC: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("defaults", {}),
    ("rw", {"read_only": False}),
    ("ro", {"read_only": True}),
    ("ro,rw", {"read_only": False}),
    ("rw,dev,suid", {"read_only": False}),
    ("nodev,nosuid,exec", {}),
    ("auto", {}), ("noauto", {}), ("nofail", {}), ("_netdev", {}),
    ("user", {}), ("nouser", {}), ("users", {}), ("group", {}), ("owner", {}),
    ("async,atime,diratime,relatime,norelatime,strictatime,nostrictatime", {}),
    ("lazytime,nolazytime,silent,loud", {}),
    ("nomand,noiversion,symfollow", {}),
    ("default_permissions", {}), ("nonempty", {"nonempty": True}),
    ("noatime", {"kernel": ["noatime"]}),
    ("nodiratime,sync,dirsync,noexec", {"kernel": ["sync", "dirsync", "noexec"]}),
    ("allow_other", {"kernel": ["allow_other"]}),
    ("x-systemd.automount,x-systemd.requires-mounts-for=/mnt/share", {}),
    ("x-systemd.device-timeout=5s,x-gvfs-hide,x-initrd.mount", {}),
    ("X-mount.mkdir,X-mount.mkdir=0755", {}),
    ("comment=systemd.automount,comment=", {}),
    ("subtype=gitguardfs,setuid=root", {}),
    ("fsname=share", {"fsname": "share"}),
    ("mountpoint=/a\\,b", {"mountpoint": "/a,b"}),
    ("fsname=a\\,b", {"fsname": "a,b"}),
]  # fmt: skip

OURS: list[tuple[str, dict[str, Any]]] = [
    ("map=1000:1000", {"map": ["1000:1000"]}),
    ("map=1000/1001:@1000/@1001", {"map": ["1000/1001:@1000/@1001"]}),
    ("map=1:2,map=@3:@4", {"map": ["1:2", "@3:@4"]}),
    ("map=1:2\\,3:4", {"map": ["1:2,3:4"]}),
    ("git=hide", {"git": "hide"}),
    ("git=hide,git=deny", {"git": "deny"}),
    ("deny=.env,deny=*.pem", {"deny": [".env", "*.pem"]}),
    ("deny=a\\,b", {"deny": ["a,b"]}),
    ("deny=a\\\\b", {"deny": ["a\\b"]}),
    ("deny=a=b", {"deny": ["a=b"]}),
    ("protect=.husky,hide=secret*", {"protect": [".husky"], "hide": ["secret*"]}),
    ("allow-bare", {"allow_bare": True}), ("allow_bare", {"allow_bare": True}),
    ("allow-suid", {"allow_suid": True}), ("allow_suid", {"allow_suid": True}),
    ("cache-timeout=0", {"cache_timeout": "0"}), ("cache_timeout=0.5", {"cache_timeout": "0.5"}),
    ("xattr=rw", {"xattr": "rw"}),
    ("audit-log=/var/log/a", {"audit_log": "/var/log/a"}),
    ("audit_log=/var/log/a\\,b", {"audit_log": "/var/log/a,b"}),
    ("seal", {"seal": True}), ("no-seal", {"seal": False}), ("noseal", {"seal": False}),
    ("no_seal", {"seal": False}),
    ("read-only", {"read_only": True}), ("read_only", {"read_only": True}),
    ("foreground", {"foreground": True}), ("debug", {"debug": True}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "found"), GENERIC + OURS)
def test_mount_options(text: str, found: dict[str, Any]) -> None:
    assert parse_o([text]) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("remount", "remount"), ("remount,ro", "remount"), ("ro,bogus", "bogus"),
        ("bogus=1", "bogus"), ("gti=hide", "gti"), ("context=system_u:x", "context"),
        ("mand", "mand"), ("nosymfollow", "nosymfollow"), ("bind", "bind"),
        ("git", "git"), ("map", "map"), ("deny", "deny"), ("cache_timeout", "cache_timeout"),
        ("seal=yes", "seal"), ("ro=1", "ro"), ("allow-bare=1", "allow-bare"),
        ("noatime=1", "noatime"), ("x", "x"), ("GIT=hide", "GIT"), (" ro", " ro"),
    ],
)  # fmt: skip
def test_what_is_unknown_or_misused_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(UserError, match=re.escape(named)) as error:
        parse_o([text])
    assert error.value.code is Exit.USAGE
    assert len(str(error.value).splitlines()) == 1


@given(st.lists(st.text(min_size=1)))
def test_splitting_undoes_joining(values: list[str]) -> None:
    assert split_o(",".join(map(quote_o, values))) == values


@given(st.text(alphabet="a,\\\n=", max_size=12))
def test_splitting_loses_nothing_but_commas_and_escapes(text: str) -> None:
    kept = re.sub(r"[,\\]", "", text)
    assert re.sub(r"[,\\]", "", "".join(split_o(text))) == kept


@pytest.mark.parametrize(
    ("text", "parts"),
    [("", []), (",", []), (",,a,,", ["a"]), ("a\\", ["a\\"]), ("a\\b", ["a\\b"]), ("\\,", [","]),
     ("a\\\\,b", ["a\\", "b"])],
)  # fmt: skip
def test_splitting(text: str, parts: list[str]) -> None:
    assert split_o(text) == parts

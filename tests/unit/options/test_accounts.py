"""Looking up users and groups."""

import os
import pwd
from pathlib import Path

import pytest

from gitguardfs.options import accounts
from gitguardfs.options.accounts import Account, OutOfRangeError, UnknownAccountError


def test_a_user_is_found_by_name_and_by_number() -> None:
    root = pwd.getpwuid(0)
    expected = Account(0, root.pw_gid, root.pw_name, root.pw_dir)
    assert accounts.find(root.pw_name) == accounts.find("0") == accounts.find("00") == expected


def test_a_number_without_an_account_is_a_user_too() -> None:
    assert accounts.find("987654") == Account(987654, 987654, "987654", exists=False)
    assert accounts.user_id("987654") == accounts.group_id("987654") == 987654


@pytest.mark.parametrize("name", ["nobody-of-that-name", "a\0b", "-1", "1.5", "\u0661", ""])
def test_what_names_nobody_is_refused(name: str) -> None:
    for look_up in (accounts.find, accounts.user_id, accounts.group_id):
        with pytest.raises(UnknownAccountError, match="no such") as caught:
            look_up(name)
        assert "\0" not in str(caught.value)


@pytest.mark.parametrize("number", ["4294967295", "9" * 23, "9" * 5000])
def test_a_number_that_nobody_can_have_is_refused(number: str) -> None:
    for look_up in (accounts.find, accounts.user_id, accounts.group_id):
        with pytest.raises(OutOfRangeError, match="out of range"):
            look_up(number)


def test_a_number_is_not_looked_up_where_it_is_all_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(pwd, "getpwuid")
    assert accounts.user_id("1000") == 1000


def test_a_path_belongs_to_the_innermost_home_that_is_its_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = {"out": 1001, "out/in": 1002, "taken": 1003, "roots": 0}
    for name, uid in owners.items():
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, 7 if name == "taken" else uid, -1)
    entries = [
        pwd.struct_passwd((name, "x", uid, 9, "", str(tmp_path / name), "/bin/sh"))
        for name, uid in owners.items()
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)

    def owner(path: str) -> int | None:
        found = accounts.owner_of_home(str(tmp_path / path))
        return None if found is None else found.uid

    places = ("out/x", "out/in/x", "out/inner", "taken/x", "roots/x", "out")
    assert [owner(place) for place in places] == [1001, 1002, 1001, None, None, None]

"""The permission language: each rule by example, and properties of all rules."""

import subprocess
from pathlib import Path
from stat import S_IFDIR, S_IFIFO, S_IFREG, S_IMODE

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitguardfs.options.permissions import Perms, PermsError

FILE, DIRECTORY = S_IFREG, S_IFDIR

EXAMPLES = [
    ("0644", FILE | 0o777, 0o644),
    ("0", DIRECTORY | 0o777, 0),
    ("0600:u+D", FILE | 0o777, 0o600),
    ("0600:u+D", DIRECTORY | 0o777, 0o700),
    ("0000,u=rD", FILE | 0o777, 0o400),
    ("0000,u=rD", DIRECTORY, 0o500),
    ("0644,a+X", FILE | 0o100, 0o755),
    ("0644,a+X", FILE | 0o600, 0o644),
    ("0644,a+X", DIRECTORY, 0o755),
    ("og-x:og+rD:u=rwX:g+rw", FILE | 0o711, 0o764),
    ("og-x:og+rD:u=rwX:g+rw", DIRECTORY | 0o700, 0o775),
    ("+x", FILE | 0o600, 0o711),
    ("-w", FILE | 0o777, 0o555),
    ("=r", FILE | 0o777, 0o444),
    ("a=", FILE | 0o777, 0),
    ("o-rwx", FILE | 0o777, 0o770),
    ("g=u", FILE | 0o741, 0o771),
    ("ug+o", FILE | 0o004, 0o444),
    ("u-g", FILE | 0o750, 0o250),
    ("g=u,u=o", FILE | 0o740, 0o070),
    ("gd-w", DIRECTORY | 0o777, 0o757),
    ("gd-w", FILE | 0o777, 0o777),
    ("gf-w", FILE | 0o777, 0o757),
    ("gf-w", S_IFIFO | 0o777, 0o757),
    ("gf-w", DIRECTORY | 0o777, 0o777),
    ("gdf-w", DIRECTORY | 0o777, 0o757),
    ("ogd+x", DIRECTORY | 0o700, 0o711),
    ("og=r:ogd+x", FILE | 0o677, 0o644),
    ("u+s,g+s,o+t", FILE | 0o644, 0o644),
    ("u+rr", FILE, 0o400),
    ("a-x,a+X", FILE | 0o711, 0o711),
    ("d+x", DIRECTORY, 0),
    ("0644,", FILE | 0o777, 0o644),
]


@pytest.mark.parametrize(("text", "mode", "bits"), EXAMPLES)
def test_examples(text: str, mode: int, bits: int) -> None:
    assert S_IMODE(Perms(text).apply(mode)) == bits


@pytest.mark.parametrize(
    "text",
    ["", ":", "u+r,,g+r", "u", "ug", "rwx", "u+q", "u*r", "u+r-w", "z+r", "1000", "0o644", "08",
     "9", "-1", "u+r g+r", "U+r", "u+R", "0644 ", "u+r;g+r"],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(PermsError):
        Perms(text)


def test_a_rule_that_names_nobody_is_told() -> None:
    assert Perms("d+x,u+r:f-w").without_effect == ("d+x", "f-w")
    assert Perms("0644,+x,da+x").without_effect == ()


who = st.text("ugoadf", max_size=4)
what = st.text("rwxXDstugo", max_size=4)
rule = st.one_of(
    st.builds("{}{}{}".format, who, st.sampled_from("+-="), what),
    st.integers(0, 0o777).map("{:o}".format),
)
modes = st.builds(int.__or__, st.sampled_from([FILE, DIRECTORY, S_IFIFO]), st.integers(0, 0o7777))


@given(st.lists(rule, min_size=1, max_size=4), modes)
def test_only_the_lower_nine_bits_ever_change(rules: list[str], mode: int) -> None:
    for separator in ",:":
        assert (Perms(separator.join(rules)).apply(mode) ^ mode) & ~0o777 == 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            "{}{}{}".format,
            st.text("ugoa", min_size=1, max_size=3), st.sampled_from("+-="),
            st.one_of(st.text("rwxX", max_size=4), st.sampled_from("ugo")),
        ),
        min_size=1, max_size=1,
    ),
    st.integers(0, 0o777),
)  # fmt: skip
def test_a_rule_of_chmods_language_does_what_chmod_does(
    tmp_path_factory: pytest.TempPathFactory, rules: list[str], mode: int
) -> None:
    path: Path = tmp_path_factory.mktemp("chmod") / "file"
    path.touch()
    path.chmod(mode)
    subprocess.run(["chmod", ",".join(rules), path], check=True)
    assert Perms(",".join(rules)).apply(FILE | mode) == FILE | S_IMODE(path.stat().st_mode)

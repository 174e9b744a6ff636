"""Files of keys, `Security`, and `mirrorq key new`."""

from __future__ import annotations

import copy
import errno
import logging
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.security.keys import KeyRing, make

from mirrorq import Key, Security
from mirrorq.cli import main
from mirrorq.errors import ConfigError
from mirrorq.security.key_files import add_key, read_keys, read_secret, write_secret
from mirrorq.security.roles import Role
from mirrorq.transport.curve import new_key_pair, public_key_of


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Secret and list, with the modes that reading asks for."""
    key = make(tmp_path / "keys", "web", "client", write=["a", "b.*"], read=["*"])
    loaded = Security.load(tmp_path / "keys")
    assert loaded.keys == (key,)
    assert loaded.public_key == key.public_key
    assert loaded.name == "web"
    secret = tmp_path / "keys" / "web.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert Security.load(secret) == loaded
    assert Security.load(tmp_path / "keys", "web") == loaded


@given(
    name=st.text(min_size=1, max_size=20),
    patterns=st.lists(st.text(min_size=1, max_size=5), max_size=3),
    queues=st.none() | st.integers(0, 9),
)
def test_any_name_and_any_pattern_survive_the_file(
    tmp_path_factory: pytest.TempPathFactory, name: str, patterns: list[str], queues: int | None
) -> None:
    """Quotes, control characters, other scripts."""
    try:
        key = Key(name, new_key_pair()[0], "client", configure=patterns, queues=queues)
    except ConfigError:
        return
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    add_key(path, key)
    assert read_keys(path) == (key,)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "keys", "a", "peer")
    secret = tmp_path / "keys" / "a.secret"
    for mode in (0o640, 0o604, 0o620):
        secret.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            Security.load(tmp_path / "keys")
    secret.chmod(0o400)
    assert Security.load(tmp_path / "keys").name == "a"


def test_a_list_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Who can write it can let himself in."""
    make(tmp_path / "keys", "a", "peer")
    (tmp_path / "keys" / "keys.toml").chmod(0o664)
    with pytest.raises(ConfigError, match="let themselves in"):
        Security.load(tmp_path / "keys")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a = 1", "not a table"),
        ("[a", "not valid TOML"),
        ("[a]\nrole = 'peer'", "not a key"),
        ("[a]\nkey = '{key}'\nrole = 'king'", "king"),
        ("[a]\nkey = '{key}'", "role"),
        ("[a]\nkey = '{key}'\nrole = 'client'\nwirte = ['x']", "wirte"),
        ("[a]\nkey = '{key}'\nrole = 'client'\nwrite = 'x'", "list of strings"),
        ("[a]\nkey = '{key}'\nrole = 'peer'\nread = ['x']", "only a client"),
        ("[a]\nkey = '{key}'\nrole = 'client'\nqueues = '5'", "whole number"),
        ("[a]\nkey = '{key}'\nrole = 'client'\nqueues = -1", "whole number"),
        ("[a]\nkey = '{key}'\nrole = 'admin'\nqueues = 5", "only a client"),
        ("\xff", "UTF-8"),
    ],
)
def test_a_wrong_list_is_refused_with_its_reason(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(text.replace("{key}", new_key_pair()[0]).encode("latin-1"))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read_keys(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("owner", "user", "is_refused"),
    [(101, 1000, True), (0, 1000, False), (1000, 1000, False), (101, 0, False)],
)
def test_another_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, user: int, is_refused: bool
) -> None:
    """Its owner can change it, whatever its mode; root itself decides whom it trusts."""
    make(tmp_path / "keys", "a", "peer")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    fstat = os.fstat

    def owned(file: int) -> os.stat_result:
        found = fstat(file)
        return os.stat_result((*found[:4], owner, *found[5:]))

    monkeypatch.setattr(os, "fstat", owned)
    for read, name in ((read_secret, "a.secret"), (read_keys, "keys.toml")):
        path = tmp_path / "keys" / name
        if is_refused:
            with pytest.raises(ConfigError, match=f"user {owner}, who can .* to user {user}"):
                read(path)
        else:
            assert read(path)


@pytest.mark.parametrize("written", [0, 20])
def test_a_full_disk_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Neither half an entry nor half a secret stays, and the same command works later."""
    make(tmp_path, "a", "peer")
    listed = tmp_path / "keys.toml"
    before, write = listed.read_bytes(), os.write
    key = Key("b", new_key_pair()[0], Role.PEER)
    calls: list[Callable[[], None]] = [
        lambda: write_secret(tmp_path / "b.secret", new_key_pair()[1]),
        lambda: add_key(listed, key),
    ]
    for call in calls:
        room = [written]

        def full(file: int, data: bytes, room: list[int] = room) -> int:
            if not room[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            room[0] -= (count := write(file, data[: room[0]]))
            return count

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(ConfigError, match=r"cannot write .*: No space left"):
                call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.secret", "keys.toml"]
    assert listed.read_bytes() == before
    make(tmp_path, "b", "peer")


@pytest.mark.parametrize("text", ["", "secret_key = 7", "secret_key = 'abc'", "hunter2", "\x00"])
def test_a_wrong_secret_file_is_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.secret"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        read_secret(path)
    assert "hunter2" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no secret key in"):
        Security.load(tmp_path)
    with pytest.raises(ConfigError, match=r"nobody\.secret"):
        Security.load(tmp_path, "nobody")
    with pytest.raises(ConfigError, match="cannot name a file"):
        Security.load(tmp_path, "../a")
    make(tmp_path, "a", "peer")
    make(tmp_path, "b", "peer")
    with pytest.raises(ConfigError, match=r"several secret keys \(a\.secret, b\.secret\)"):
        Security.load(tmp_path)


def test_no_secret_shows_anywhere(ring: KeyRing, caplog: pytest.LogCaptureFixture) -> None:
    """In repr, str, format, errors and logs."""
    caplog.set_level(logging.DEBUG)
    security = ring.of("a")
    inline = Security(security.secret_key, security.keys)
    logging.getLogger("mirrorq").warning("%s %r", security, inline)
    with pytest.raises(ConfigError) as caught:
        inline.check_node("zebra", ())
    with pytest.raises(ConfigError) as wrong:
        Security(security.secret_key + "x", ())
    shown = f"{security} {inline!r} {[inline]} {caught.value} {wrong.value} {caplog.text}"
    assert security.secret_key not in shown
    assert security.public_key in shown
    assert not attrs.fields(Security).secret_key.repr


def test_a_pickled_security_names_the_file_or_holds_the_key(ring: KeyRing) -> None:
    """From a file the secret does not travel; given by value it must."""
    security = ring.of("a")
    pickled = pickle.dumps(security)
    assert security.secret_key.encode() not in pickled
    assert pickle.loads(pickled) == security
    inline = Security(security.secret_key, security.keys)
    pickled = pickle.dumps(inline)
    assert security.secret_key.encode() in pickled
    assert pickle.loads(pickled) == inline == copy.copy(inline)
    assert len({inline, pickle.loads(pickled)}) == 1


def test_names_and_keys_are_unique() -> None:
    public, secret = new_key_pair()
    other = new_key_pair()[0]
    with pytest.raises(ConfigError, match="two keys are named 'a'"):
        Security(secret, (Key("a", public, "peer"), Key("a", other, "peer")))
    with pytest.raises(ConfigError, match="have one key"):
        Security(secret, (Key("a", public, "peer"), Key("b", public, "peer")))
    with pytest.raises(ConfigError, match=r"not a mirrorq\.Key"):
        Security(secret, ("a",))  # type: ignore[arg-type]


def keygen(*given: str) -> str:
    result = CliRunner().invoke(main, ["key", "new", *given])
    assert result.exit_code == 0, result.output
    return result.output


def test_keygen_makes_files_and_says_what_is_next(tmp_path: Path) -> None:
    """A peer and a client into one directory; nothing secret is printed."""
    keys = tmp_path / "keys"
    said = keygen("a", "--role", "peer", "--keys", str(keys))
    said += keygen("web", "--keys", str(keys), "--write", "orders.*", "--write", "log")
    node, client = Security.load(keys, "a"), Security.load(keys, "web")
    assert [(key.name, key.role, key.write) for key in client.keys] == [
        ("a", "peer", ()),
        ("web", "client", ("orders.*", "log")),
    ]
    assert node.name == "a"
    assert client.name == "web"
    for secret in (node.secret_key, client.secret_key):
        assert public_key_of(secret) in said
        assert secret not in said
    assert "Next: copy keys.toml" in said


def test_keygen_overwrites_nothing(tmp_path: Path) -> None:
    """Neither a file nor an entry; what it began it takes back."""
    keys = tmp_path / "keys"
    keygen("a", "--keys", str(keys))
    before = (keys / "keys.toml").read_bytes(), (keys / "a.secret").read_bytes()
    result = CliRunner().invoke(main, ["key", "new", "a", "--keys", str(keys)])
    assert result.exit_code == 1
    assert "is there already" in result.output
    assert before == ((keys / "keys.toml").read_bytes(), (keys / "a.secret").read_bytes())
    os.unlink(keys / "a.secret")
    result = CliRunner().invoke(main, ["key", "new", "a", "--keys", str(keys)])
    assert result.exit_code == 1
    assert "lists 'a' already" in result.output
    assert not (keys / "a.secret").exists()


@pytest.mark.parametrize("given", [["a/b"], ["a", "--role", "peer", "--write", "x"]])
def test_keygen_refuses_in_one_line(tmp_path: Path, given: list[str]) -> None:
    result = CliRunner().invoke(main, ["key", "new", *given, "--keys", str(tmp_path / "keys")])
    assert result.exit_code == 1
    assert result.output.startswith("mirrorq: ")
    assert not list(tmp_path.rglob("*.secret"))

"""Login shells, banners and startup files that print: accounts made for the test, then removed."""

from __future__ import annotations

import os
import shutil

import pytest
from sshd import account

from specdash.errors import LinkError
from specdash.host.open import open_link

pytestmark = pytest.mark.sshd

NOISE = "echo welcome to the cluster; echo 'specdash-0123456789abcdef py 2.7.1'; echo warnings >&2\n"


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("making accounts needs root and useradd")
        pytest.skip("making accounts needs root and useradd")


@pytest.mark.parametrize(
    ("shell", "startup"),
    [
        ("bash", {".bashrc": NOISE, ".profile": NOISE}),
        ("zsh", {".zshenv": NOISE}),
        ("fish", {".config/fish/config.fish": "echo welcome; echo 'warn' >&2\n"}),
        ("dash", {}),
    ],
)
async def test_every_login_shell(sshd, until, shell, startup, tmp_path):
    path = shutil.which(shell)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{shell} is not installed")
        pytest.skip(f"{shell} is not installed")
    banner = tmp_path / "banner"
    banner.write_text("*** authorised use only ***\nspecdash- \x1b[31m\n")
    server = sshd(f"Banner {banner}")
    odd = "/tmp/odd \\ 'python' $x !\"\\"
    with account(path, startup) as user:
        async with await open_link(server.host(user=user)) as link:
            assert link.hello["shell"] == path and link.hello["user"] == user
            assert link.hello["missing_modules"] == {}
            done = await link.call("exec", {"argv": ["printf", "%s", "a'b\\c\nd$(x)"]})
            assert done["blob"] == b"a'b\\c\nd$(x)"
        with pytest.raises(LinkError) as caught:
            await open_link(server.host(user=user, python=odd))
        assert repr(odd) in caught.value.sentence
        await until(lambda: not server.children(), "nothing is left")


async def test_an_account_without_a_shell_is_said(sshd):
    nologin = shutil.which("nologin") or "/usr/sbin/nologin"
    with account(nologin) as user, pytest.raises(LinkError, match="did not run the agent") as caught:
        await open_link(sshd().host(user=user))
    assert "not available" in caught.value.sentence

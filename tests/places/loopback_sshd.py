"""An sshd on the loopback with keys of its own, run as an ordinary process on a port that is free."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_KEYS = ("host", "user", "stranger")


class LoopbackServer:
    """An sshd that knows one key, `user`. Everything that it reads is in `folder`."""

    def __init__(self, folder: Path, sshd: str) -> None:
        self.folder = folder
        for name in _KEYS:
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=60
            )
        (folder / "keys").write_text((folder / "user.pub").read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/keys\n"
            f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"PermitRootLogin yes\nAcceptEnv PRECGUI_*\n"
        )
        self.process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                pytest.skip("sshd does not start here")
            time.sleep(0.05)

    def options(self, key: str = "user", *, known: bool = True, host: str = "host") -> tuple[str, ...]:
        """The options of ssh for this server alone; `host` is the key that ssh takes for that of the server."""
        host_key = " ".join((self.folder / f"{host}.pub").read_text().split()[:2])
        hosts = self.folder / f"known-{known}-{host}"
        hosts.write_text(f"[127.0.0.1]:{self.port} {host_key}\n" if known else "")
        return (
            "-F", "none", "-p", str(self.port), "-i", str(self.folder / key), "-o", "IdentitiesOnly=yes",
            "-o", f"UserKnownHostsFile={hosts}", "-o", "GlobalKnownHostsFile=none", "-o", "IdentityAgent=none",
            "-o", "SendEnv=PRECGUI_*",
        )  # fmt: skip


@contextlib.contextmanager
def loopback_server(folder: Path) -> Iterator[LoopbackServer]:
    """Skips the test where there is none."""
    sshd = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if sshd is None or None in map(shutil.which, ("ssh", "ssh-keygen")):
        pytest.skip("sshd is not installed; Debian has it in openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    started = LoopbackServer(folder, sshd)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()

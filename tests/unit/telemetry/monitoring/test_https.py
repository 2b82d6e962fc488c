"""The dashboard over HTTPS: with a certificate that its viewer trusts, and with others."""

import http.cookiejar
import socket
import ssl
import subprocess
import time
import urllib.request
from urllib.parse import urlsplit

import pytest

from stratagem._src.cli import main
from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.core.errors import UnavailableError
from stratagem._src.telemetry.monitoring.collector import Collector
from stratagem._src.telemetry.monitoring.dashboard import page_server
from stratagem._src.telemetry.monitoring.dashboard.dashboard_server import DashboardServer
from stratagem._src.telemetry.monitoring.dashboard.page_certificate import PageCertificate
from stratagem._src.telemetry.monitoring.dashboard_client import DashboardClient

KEY = "the-key-of-the-dashboard"


def new_certificate(folder, password=""):
    """Creates a certificate of this machine as the documentation says."""
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    encryption = ["-passout", f"pass:{password}"] if password else ["-nodes"]
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", *encryption, "-days", "30"),
            *("-keyout", keyfile, "-out", certfile, "-subj", "/CN=localhost", "-addext", names),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return PageCertificate(str(certfile), str(keyfile))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return new_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def server(certificate):
    with Collector("127.0.0.1", "correct horse battery staple") as collector:
        collector.note("job_started", name="train")
        address = Address("0.0.0.0", 0)
        with DashboardServer(address, collector.view, KEY, certificate=certificate) as server:
            yield server


def port_of(server):
    return urlsplit(server.link).port


def test_a_browser_that_trusts_the_certificate_sees_the_page(server, certificate):
    assert server.link.startswith("https://")
    cookies = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(
            context=ssl.create_default_context(cafile=certificate.certfile)
        ),
        urllib.request.HTTPCookieProcessor(cookies),
    )
    where = f"https://127.0.0.1:{port_of(server)}/"
    with opener.open(f"{where}?key={KEY}", timeout=30) as answer:
        assert answer.url == where  # the key has become a cookie
        assert b"Stratagem" in answer.read()
    assert [cookie.secure for cookie in cookies] == [True]
    with opener.open(f"{where}state", timeout=30) as answer:
        assert b"train" in answer.read()


def test_top_trusts_what_ssl_cert_file_says(server, certificate, monkeypatch, capsys):
    link = f"https://localhost:{port_of(server)}/?key={KEY}"
    with pytest.raises(LaunchError, match="set SSL_CERT_FILE"):
        DashboardClient(link).view()
    monkeypatch.setenv("SSL_CERT_FILE", certificate.certfile)
    assert main(["top", link]) == 0
    assert capsys.readouterr().out.startswith("train")


def test_without_encryption_nothing_is_answered(server):
    with pytest.raises(UnavailableError):
        DashboardClient(f"http://127.0.0.1:{port_of(server)}/?key={KEY}").view()


def test_who_does_not_finish_the_handshake_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(page_server, "_REQUEST_TIMEOUT", 0.5)
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as silent:
        began = time.monotonic()
        assert silent.recv(1) == b""
        assert time.monotonic() - began < 20


def test_a_certificate_that_is_none_is_refused_with_the_way_to_make_one(tmp_path, certificate):
    (tmp_path / "other").mkdir()
    other = new_certificate(tmp_path / "other")
    locked = new_certificate(tmp_path, password="secret")
    for wrong in (
        PageCertificate("/does/not/exist.pem"),
        PageCertificate(certificate.certfile),  # has no key
        PageCertificate(certificate.certfile, other.keyfile),
        locked,
    ):
        with pytest.raises(LaunchError, match="openssl req"):
            DashboardServer(Address("127.0.0.1", 0), lambda since: {}, KEY, certificate=wrong)


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (["--dashboard", "--dashboard-keyfile", "key.pem"], "Add --dashboard-certfile"),
        (["--dashboard-certfile", "cert.pem"], "Add --dashboard"),
    ],
)
def test_flags_that_need_each_other(flags, fix, capsys):
    assert main(["run", "--dry-run", *flags, "train.py"]) == 2
    assert fix in capsys.readouterr().err


@pytest.mark.timeout(120)
@pytest.mark.parametrize("encrypted", [True, False])
def test_beyond_loopback_the_launcher_warns_of_a_page_that_is_not_encrypted(
    encrypted, certificate, tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    program = tmp_path / "train.py"
    program.write_text("")
    flags = ["--dashboard-certfile", certificate.certfile]
    flags += ["--dashboard-keyfile", certificate.keyfile]
    where = ["--dashboard-address", "0.0.0.0:0"]
    assert main(["run", *where, *(flags if encrypted else []), str(program)]) == 0
    said = capfd.readouterr().err
    assert ("dashboard: https://" if encrypted else "dashboard: http://") in said
    assert ("is not encrypted" in said) is not encrypted

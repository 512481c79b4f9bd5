"""Does a newcomer's path work as the README has it, and does a server start as it was told?"""

import asyncio
import datetime
import ipaddress
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from house import house
from served import Served, free_port

from dpbalance.client import CALLS, Client
from dpbalance.errors import FileFormatError, OptionError, Unreachable
from dpbalance.service.config import Config, commented, load_config
from dpbalance.service.serve import first_token
from dpbalance.service.settings import Settings
from dpbalance.service.supervisor import Solver
from dpbalance.service.tables import token

ROOT = Path(__file__).parents[1]
NEWCOMER_S = 300.0
DAY = datetime.timedelta(days=1)


def test_a_newcomers_path_from_the_readme_ends_in_grants_and_an_explained_denial(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- newcomer -->\n```\n(.*?)```", readme, re.DOTALL)
    assert found
    typed = [line[2:] for line in found.group(1).splitlines() if line.startswith("$ ")]
    port = str(free_port())
    environment = {**os.environ, "DPBALANCE_PORT": port, "DPBALANCE_SERVER": f"http://127.0.0.1:{port}"}
    began = time.monotonic()
    told: dict[str, str] = {}
    server = None
    try:
        for line in typed:
            words = shlex.split(line.removesuffix(" &"))
            assert words[0] == ".venv/bin/dpbalance"
            command = [sys.executable, "-m", "dpbalance", *words[1:]]
            if line.endswith("&"):
                server = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
                continue
            ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, (line, ended.stderr)
            told[line] = ended.stdout
    finally:
        assert server is not None
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    assert time.monotonic() - began < NEWCOMER_S
    listed = told[".venv/bin/dpbalance list"]
    assert "granted" in listed
    assert told[".venv/bin/dpbalance pipeline explain p3"].startswith("p3 is denied: ")


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dpbalance.toml"
    file.write_text("port = 1111\nrate = 5.0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert (load_config().port, load_config().rate) == (1111, 5.0)
    monkeypatch.setenv("DPBALANCE_PORT", "2222")
    assert (load_config().port, load_config().rate) == (2222, 5.0)
    assert load_config(port=3333).port == 3333
    monkeypatch.setenv("DPBALANCE_PORT", "many")
    with pytest.raises(OptionError, match="port"):
        load_config()


def test_a_file_with_an_unknown_setting_or_none_at_all_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    with pytest.raises(FileFormatError, match="cannot read"):
        load_config(file)
    file.write_text("prot = 1", encoding="utf-8")
    with pytest.raises(OptionError, match="prot"):
        load_config(file)


def test_the_commented_file_names_every_setting_and_is_read_as_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPBALANCE_DATABASE", raising=False)
    file = tmp_path / "dpbalance.toml"
    file.write_text(commented(), encoding="utf-8")
    assert load_config(file) == Config()
    for name in Config.model_fields:
        assert f"\n# {name} = " in commented()


def test_off_loopback_a_server_wants_tls_or_to_be_told_otherwise(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.touch()
    with pytest.raises(OptionError, match="reached from elsewhere"):
        load_config(host="0.0.0.0")
    with pytest.raises(OptionError, match="both a certificate and its key"):
        load_config(tls_cert=pem)
    with pytest.raises(OptionError, match="no file"):
        load_config(tls_cert=pem, tls_key=tmp_path / "none")
    assert load_config(host="0.0.0.0", insecure=True).insecure
    assert load_config(host="0.0.0.0", tls_cert=pem, tls_key=pem).tls_cert == pem
    assert load_config(host="localhost").host == "localhost"


@pytest.mark.parametrize("kind", [Config, Settings], ids=["config", "settings"])
def test_every_setting_is_documented_with_its_default(kind: type[Config] | type[Settings]) -> None:
    page = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    for name, field in kind.model_fields.items():
        row = re.search(rf"^\| `{name}` \|.*\| `([^`]*)` \|$", page, re.MULTILINE)
        assert row, name
        assert row.group(1) == str(field.default).lower(), name


def test_every_metric_is_documented() -> None:
    from dpbalance.service.metrics import Metrics

    page = (ROOT / "docs" / "service.md").read_text(encoding="utf-8")
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` |" in page, name


def test_a_server_with_a_certificate_speaks_https_alone(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    served = Served(tmp_path, scheme="https", tls_cert=certificate, tls_key=key)
    try:
        with Client(served.url, served.token, verify=ssl.create_default_context(cafile=str(certificate))) as client:
            assert client.call(CALLS.get("/v1/whoami"))["role"] == "operator"
        plain = Client(served.url.replace("https", "http"), served.token, retries=0)
        served.clients.append(plain)
        with pytest.raises(Unreachable):
            plain.pipeline("p1")
    finally:
        assert served.stop() == 0


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine alone, that ends tomorrow."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "cert.pem", folder / "key.pem"
    pem.write_bytes(made.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pem, private


def test_a_token_that_is_there_is_never_replaced_and_none_is_shown_where_nobody_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "operator.token"
    with house(tmp_path, first_token_file=file) as home:
        with home.database.writing() as connection:
            connection.execute(token.delete())
        first_token(home.desk)
        made = file.read_text().strip()
        assert made not in capsys.readouterr().err
        with home.database.writing() as connection:
            connection.execute(token.delete())
        with pytest.raises(OptionError, match="is there already"):
            first_token(home.desk)
        assert file.read_text().strip() == made


def test_one_token_waits_for_one_explanation_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def solved(_: Solver, asked: Any) -> Any:
        await asyncio.sleep(0.1)
        return asked

    monkeypatch.setattr(Solver, "_solved", solved)
    with house(tmp_path) as home:
        home.market()
        name = home.submit()
        asked = home.http.get
        header = {"Authorization": f"Bearer {home.tokens['analyst']}"}

        async def both() -> list[int]:
            told = (asked(f"/v1/pipelines/{name}/explain", headers=header) for _ in range(2))
            return sorted(each.status_code for each in await asyncio.gather(*told))

        assert home.runner.run(both()) == [200, 429]
        assert home.ask("GET", f"/v1/pipelines/{name}/explain").status_code == 200

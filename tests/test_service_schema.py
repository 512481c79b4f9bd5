"""Does the OpenAPI document tell the truth, whatever is sent?"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served
from servers import PostgresServer

EXAMPLES = int(os.environ.get("DPB_SERVICE_EXAMPLES", "12"))
"""Of each endpoint; `make soak` tries many more."""

SECONDS = int(os.environ.get("DPB_SERVICE_SECONDS", "60"))
"""After which no more is tried."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = PostgresServer()  # it takes less than SQLite does
    made = Served(tmp_path_factory.mktemp("schema"), server.database(), rate=100_000, burst=100_000)
    with made.client() as client:
        client.enrol({"phone-1": "maria"})
        client.add_blocks([("phone-1", "mon", 1.0)])
        client.create_token("analyst", "ana")
    yield made
    made.stop()
    server.stop()


def test_schemathesis_finds_nothing(served: Served, tmp_path: Path) -> None:
    token = (served.folder / "operator.token").read_text().strip()
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    command = [
        str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(config), "run",
        f"{served.url}/openapi.json", "--header", f"Authorization: Bearer {token}",
        "--max-examples", str(EXAMPLES), "--max-time", str(SECONDS),
        "--seed", "1", "--no-color", "--warnings", "off", "--request-timeout", "60",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout[-12_000:] + ended.stderr[-2_000:]


CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 422, 428, 429, 503]

[checks.positive_data_acceptance]
# a schema cannot say which devices, schedulers and combinations of fields there are
expected-statuses = ["2xx", 400, 401, 403, 404, 409, 412, 413, 422, 428, 429, 503]
"""

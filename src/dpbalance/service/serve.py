"""How does a server start and end? A token for the first operator, uvicorn, and the rounds beside it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import uvicorn

from dpbalance.errors import OptionError
from dpbalance.service.app import make_app, make_desk
from dpbalance.service.config import Config
from dpbalance.service.desk import Desk
from dpbalance.service.models import NewToken
from dpbalance.service.routes_house import make_token
from dpbalance.service.tables import state, token
from dpbalance.service.worker import PRIVATE

GRACE_S = 15


def serve(config: Config) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    os.umask(PRIVATE)
    desk = make_desk(config)
    first_token(desk)
    options: dict[str, Any] = {}
    if config.tls_cert is not None:
        options = {"ssl_certfile": str(config.tls_cert), "ssl_keyfile": str(config.tls_key)}
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(desk),
            host=config.host,
            port=config.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            **options,
        )
    )
    scheme = "http" if config.tls_cert is None else "https"
    print(f"dpbalance: serving {config.database} on {scheme}://{config.host}:{config.port}", file=sys.stderr)
    for each in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them once more when it has ended in order
        signal.signal(each, lambda *_: None)
    server.run()


def first_token(desk: Desk) -> None:
    """In an empty database: an operator's token, into a file for its owner alone, and once on a terminal."""
    with desk.database.writing() as connection:
        connection.execute(state.update().values(done=state.c.done))  # replicas that start at once: one after the other
        if connection.execute(sa.select(token.c.id).limit(1)).first() is not None:
            return
        made = make_token(connection, NewToken(role="operator", name="operator", label="first"), desk.clock.now())
        _write_secret(desk.config.first_token_file, made["secret"])
    shown = f" {made['secret']}" if sys.stderr.isatty() else ""  # what is no terminal may be a log
    print(f"dpbalance: operator token{shown} in {desk.config.first_token_file}", file=sys.stderr)


def _write_secret(path: Path, text: str) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    except FileExistsError:
        raise OptionError(
            f"{path} is there already, and this database is new: it may be the token of another",
            hint="--token-file FILE, or moving it away",
        ) from None
    except OSError as problem:
        raise OptionError(f"cannot write {path}: {problem.strerror or problem}", hint="--token-file FILE") from None

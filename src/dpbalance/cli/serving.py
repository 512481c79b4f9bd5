"""How is a server run from a terminal? Serve, write a configuration, and look whether all is well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import Format, Shape, app, put, put_json
from dpbalance.errors import DPBalanceError, FileFormatError, LedgerDamaged, OptionError

if TYPE_CHECKING:
    from dpbalance.service.config import Config

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A file of settings; default dpbalance.toml.")
]
Url = Annotated[str | None, typer.Option(metavar="URL", help="sqlite:///FILE or postgresql://HOST/NAME.")]


@app.command()
def serve(
    config: ConfigFile = None,
    database: Url = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="The port to listen on.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen off loopback without TLS.")] = False,
    ledger_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key that signs the ledger.")] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Where the first token goes.")] = None,
    log: Annotated[str | None, typer.Option(metavar="FORM", help="json, console or none.")] = None,
) -> None:
    """Run the service until Ctrl-C: its API, and round after round."""
    given = {
        "database": database,
        "host": host,
        "port": port,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "insecure": insecure or None,
        "ledger_key": ledger_key,
        "first_token_file": token_file,
        "log": log,
    }
    loaded = _service("config").load_config(config, **given)
    _service("serve").serve(loaded)


@app.command()
def init(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it.")] = Path("dpbalance.toml"),
    format_: Shape = Format.table,
) -> None:
    """Write a configuration file with every setting of a server, commented out at its default."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(_service("config").commented())
    except OSError as problem:
        raise FileFormatError(f"cannot write {out}: {problem.strerror or problem}") from None
    put_json({"format": "dpbalance-init/1", "file": str(out)}) if format_ == Format.json else put(f"Wrote {out}.")


@app.command()
def doctor(config: ConfigFile = None, database: Url = None, format_: Shape = Format.table) -> None:
    """Look whether configuration, database, ledger, clock, lease, TLS and kernels are as they should be."""
    loaded = _service("config").load_config(config, database=database)
    rows = _examined(loaded)
    if format_ == Format.json:
        put_json({"format": "dpbalance-doctor/1", "checks": rows})
    else:
        from dpbalance.cli.tables import rendered, table

        told = [(each["check"], "well" if each["ok"] else "NOT WELL", each["told"]) for each in rows]
        put(rendered(table("Examined", ["check", "is", "because"], told)))
    if not all(each["ok"] for each in rows):
        raise LedgerDamaged("not all is well", hint="the first line that is not")


def _service(module: str) -> Any:
    """A module of the service, whose packages may not be installed."""
    from importlib import import_module

    try:
        return import_module(f"dpbalance.service.{module}")
    except ImportError as problem:
        raise OptionError(
            f"the service needs the package {problem.name!r}, which is not installed",
            hint="pip install 'dpbalance[service]'",
        ) from None


def _examined(loaded: Config) -> list[dict[str, Any]]:
    from dpbalance.clock import RealClock
    from dpbalance.ledger import open_ledger
    from dpbalance.market import worked_example
    from dpbalance.scheduler import scheduler
    from dpbalance.service.database import Database
    from dpbalance.service.keeping import read_state

    rows: list[dict[str, Any]] = []

    def check(name: str, work: Any) -> Any:
        try:
            found = work()
            rows.append({"check": name, "ok": True, "told": str(found)})
            return found
        except DPBalanceError as problem:
            rows.append({"check": name, "ok": False, "told": str(problem)})
        return None

    check("configuration", lambda: f"{loaded.host}:{loaded.port}, rate {loaded.rate:g} a second")
    check("TLS", lambda: "off: loopback, or a proxy has it" if loaded.tls_cert is None else loaded.tls_cert)
    clock = RealClock()
    with open_ledger(loaded.database, key_file=loaded.ledger_key) as ledger:

        def head() -> str:
            verdict = ledger.verify().demand()
            return f"row {verdict.seq}, {verdict.blocks} blocks, {verdict.entries} charges, all verified"

        def state() -> str:
            database = Database(loaded.database)
            with database.reading() as connection:
                row = read_state(connection)
            database.close()
            return f"{row.pipelines} pipelines, {row.rounds} rounds, settings at version {row.version}"

        def lease() -> str:
            now = ledger.head()
            return f"{now.holder or 'nobody'}, token {now.token}, until {now.until:.0f}"

        def time() -> str:
            with ledger.store.reading() as reader:
                newest = max((moment for (moment,) in reader.rows("journal", ["time"])), default=0.0)
            if newest > clock.now() + 5:
                raise LedgerDamaged(f"the journal was written {newest - clock.now():.0f} s in the future")
            return f"{clock.now():.0f}, after every row of the journal"

        check("ledger", head)
        check("database", state)
        check("clock", time)
        check("lease", lease)
    check("kernels", lambda: f"{len(scheduler('dpbalance').decide(worked_example()).grants)} grants in the example")
    return rows

"""What can be asked of a server from a terminal? Pipelines, devices, rounds and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import All, Format, Shape, app, put, put_json
from dpbalance.errors import OptionError

if TYPE_CHECKING:
    from dpbalance.client import Client

SERVER = "http://127.0.0.1:8787"
ROWS = 20
STARTING_S = 30.0
"""So long a command waits for a server on this machine that is starting."""

NEAR = ("http://127.0.0.1", "http://localhost")

Server = Annotated[str, typer.Option(metavar="URL", envvar="DPBALANCE_SERVER", help="Where the server is.")]
TokenFile = Annotated[
    Path,
    typer.Option(metavar="FILE", envvar="DPBALANCE_TOKEN_FILE", help="A file with the token, unless DPBALANCE_TOKEN."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="A pipeline, such as p1.")]
Key = Annotated[str | None, typer.Option(metavar="TEXT", help="Safe to be asked again under this key.")]
OPERATOR = Path("operator.token")

pipeline_app = typer.Typer(help="Single pipelines.", no_args_is_help=True, rich_markup_mode=None)
device_app = typer.Typer(help="Devices and their blocks.", no_args_is_help=True, rich_markup_mode=None)
round_app = typer.Typer(help="Rounds of a server.", no_args_is_help=True, rich_markup_mode=None)
token_app = typer.Typer(help="Tokens of a server.", no_args_is_help=True, rich_markup_mode=None)
for each, name in ((pipeline_app, "pipeline"), (device_app, "device"), (round_app, "round"), (token_app, "token")):
    app.add_typer(each, name=name)


@app.command()
def submit(
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON file with one pipeline or a list; - reads stdin.")
    ] = None,
    devices: Annotated[str | None, typer.Option(metavar="WHICH", help="all, share=0.5, sample=3 or named=A,B.")] = None,
    windows: Annotated[str | None, typer.Option(metavar="WHICH", help="latest=N or FIRST..LAST.")] = None,
    cost: Annotated[str | None, typer.Option(metavar="COST", help="Epsilon on a block, or a recipe as JSON.")] = None,
    weight: Annotated[float, typer.Option(help="The analyst's own priority among its pipelines.")] = 1.0,
    max_multiple: Annotated[float | None, typer.Option(metavar="N", help="The most of its demand it can use.")] = None,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="Unix seconds when it expires.")] = None,
    analyst: Annotated[str | None, typer.Option(metavar="NAME", help="For whom, with an operator's token.")] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="What people call it.")] = "",
    key: Key = None,
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    format_: Shape = Format.table,
) -> None:
    """Submit a pipeline, or all of a file."""
    if (file is None) == (devices is None):
        raise OptionError("give either --file, or --devices, --windows and --cost")
    with _client(server, token_file) as client:
        if file is not None:
            asked = _document(file)
            listed = asked if isinstance(asked, list) else [asked]
            ids = client.submit_many([_for(analyst, each) for each in listed], key=key)
        else:
            more = {"max_multiple": max_multiple, "deadline": deadline, "analyst": analyst}
            ask = {
                "devices": _devices(devices or ""),
                "windows": _windows(windows or "latest=1"),
                "cost": _json(cost or "", "cost"),
                "weight": weight,
                "label": label,
                **{name: value for name, value in more.items() if value is not None},
            }
            ids = [client.submit(key=key, **ask)["id"]]
    _told(format_, {"format": "dpbalance-submitted/1", "ids": ids}, f"Submitted {', '.join(ids)}.")


@app.command()
def status(id_: Id, server: Server = SERVER, token_file: TokenFile = OPERATOR, format_: Shape = Format.table) -> None:
    """Show how far a pipeline has come."""
    with _client(server, token_file) as client:
        found = client.pipeline(id_)
    _told(format_, {"format": "dpbalance-pipeline/1", **found}, _sentence(dict(found)))


@app.command(name="list")
def list_(
    state: Annotated[str | None, typer.Option(metavar="STATE", help="pending, granted, cancelled, ..")] = None,
    analyst: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this analyst.")] = None,
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    all_rows: All = False,
    format_: Shape = Format.table,
) -> None:
    """List pipelines."""
    with _client(server, token_file) as client:
        rows = list(client.pipelines(state=state, analyst=analyst))
    columns = ["id", "analyst", "state", ">multiple", "label", "why"]
    told = [
        (e["id"], e["analyst"], e["state"], e["multiple"] or "", e["label"], (e["denial"] or {}).get("reason", ""))
        for e in rows
    ]
    _table(format_, "dpbalance-pipelines/1", "pipelines", rows, "Pipelines", columns, told, all_rows)


@app.command()
def cancel(id_: Id, server: Server = SERVER, token_file: TokenFile = OPERATOR, format_: Shape = Format.table) -> None:
    """Take a pipeline back that still waits."""
    with _client(server, token_file) as client:
        gone = client.cancel(id_)
    _told(format_, {"format": "dpbalance-pipeline/1", **gone}, _sentence(dict(gone)))


@pipeline_app.command(name="explain")
def explain_served(
    id_: Id, server: Server = SERVER, token_file: TokenFile = OPERATOR, format_: Shape = Format.table
) -> None:
    """Say why a pipeline waits, and what would get it served."""
    with _client(server, token_file) as client:
        told = client.explain(id_)
    helps = told.get("helps", [])
    text = told["sentence"] + (f"\nIt would be served by {'; or '.join(helps)}." if helps else "")
    _told(format_, {"format": "dpbalance-explanation/1", **told}, text)


@device_app.command()
def enrol(
    names: Annotated[list[str], typer.Argument(metavar="DEVICE", help="Names of new devices.")],
    contributor: Annotated[str | None, typer.Option(metavar="NAME", help="Whose data they hold.")] = None,
    key: Key = None,
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    format_: Shape = Format.table,
) -> None:
    """Enrol devices."""
    with _client(server, token_file) as client:
        count = client.enrol(dict.fromkeys(names, contributor), key=key)
    _told(format_, {"format": "dpbalance-enrolled/1", "count": count}, f"Enrolled {count} devices.")


@device_app.command(name="add-blocks")
def add_blocks(
    window: Annotated[str, typer.Argument(metavar="WINDOW", help="The time window of the new blocks.")],
    budget: Annotated[str, typer.Argument(metavar="BUDGET", help="Epsilon, or a JSON list, one for each order.")],
    device: Annotated[list[str] | None, typer.Option(metavar="DEVICE", help="Only of this device; again.")] = None,
    key: Key = None,
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    format_: Shape = Format.table,
) -> None:
    """Add the blocks of a new window, to every device or to some."""
    amount = _json(budget, "budget")
    with _client(server, token_file) as client:
        names = device or [each["name"] for each in client.pages("/v1/devices")]
        count = client.add_blocks([(name, window, amount) for name in names], key=key)
    _told(format_, {"format": "dpbalance-added/1", "count": count}, f"Added {count} blocks.")


@device_app.command(name="list")
def list_blocks(
    server: Server = SERVER, token_file: TokenFile = OPERATOR, all_rows: All = False, format_: Shape = Format.table
) -> None:
    """List devices and what is left of their blocks."""
    with _client(server, token_file) as client:
        rows = list(client.pages("/v1/blocks"))
    columns = ["block", "state", ">spent", ">unlocked", ">capacity"]
    told = [(e["id"], e["state"], str(e["spent"]), str(e["unlocked"]), str(e["capacity"])) for e in rows]
    _table(format_, "dpbalance-blocks/1", "blocks", rows, "Blocks", columns, told, all_rows)


@device_app.command()
def change(
    device: Annotated[str, typer.Argument(metavar="DEVICE", help="The device.")],
    window: Annotated[str, typer.Argument(metavar="WINDOW", help="The window of the block.")],
    budget: Annotated[str | None, typer.Option(metavar="BUDGET", help="Another budget.")] = None,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="open, frozen or retired.")] = None,
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    format_: Shape = Format.table,
) -> None:
    """Set the budget of a block, or freeze, thaw or retire it."""
    made = {"budget": None if budget is None else _json(budget, "budget"), "state": state}
    with _client(server, token_file) as client:
        block = client.change_block(device, window, **{name: each for name, each in made.items() if each is not None})
    _told(format_, {"format": "dpbalance-block/1", **block}, f"{block['id']} is {block['state']}.")


@round_app.command()
def run(
    key: Key = None, server: Server = SERVER, token_file: TokenFile = OPERATOR, format_: Shape = Format.table
) -> None:
    """Run a round now."""
    with _client(server, token_file) as client:
        told = client.run_round(key=key)
    text = f"Done; the newest round is {told['round'] or 'none'}." if told["done"] else "Asked for; not done yet."
    _told(format_, {"format": "dpbalance-ran/1", **told}, text)


@round_app.command(name="list")
def list_rounds(
    server: Server = SERVER, token_file: TokenFile = OPERATOR, all_rows: All = False, format_: Shape = Format.table
) -> None:
    """List rounds, the newest first."""
    from itertools import islice

    with _client(server, token_file) as client:
        rows = list(islice(client.pages("/v1/rounds"), None if all_rows else ROWS))
    columns = [">round", "state", "scheduler", ">pending", ">granted", "denied"]
    told = [
        (str(e["number"]), e["state"], e["scheduler"], str(e["pending"]), str(e["granted"]), _counts(e["denied"]))
        for e in rows
    ]
    _table(format_, "dpbalance-rounds/1", "rounds", rows, "Rounds", columns, told, True)


@round_app.command()
def show(
    number: Annotated[int, typer.Argument(metavar="N", help="The round.")],
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    all_rows: All = False,
    format_: Shape = Format.table,
) -> None:
    """Show one round: who was served, and who newly was not."""
    with _client(server, token_file) as client:
        told = client.round(number)
    rows = [(e["pipeline"], e["analyst"], "granted", str(e["multiple"])) for e in told["grants"]]
    rows += [(e["pipeline"], e["analyst"], e["reason"], "") for e in told["denials"]]
    columns = ["pipeline", "analyst", "became", ">multiple"]
    _table(format_, "dpbalance-round-shown/1", "round", told, f"Round {number}", columns, rows, all_rows)


@round_app.command()
def preview(
    scheduler: Annotated[str, typer.Option(metavar="NAME", help="Who decides.")] = "dpbalance",
    beta: Annotated[str, typer.Option(metavar="NUMBER", help="Fairness preference, 0 to inf.")] = "2.2",
    lam: Annotated[str | None, typer.Option(metavar="NUMBER", help="Efficiency preference.")] = None,
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    all_rows: All = False,
    format_: Shape = Format.table,
) -> None:
    """Show what would be decided now, against the present settings."""
    by = {"scheduler": scheduler, "beta": _preference(beta), "lam": None if lam is None else _preference(lam)}
    with _client(server, token_file) as client:
        told = client.preview(**by)
    rows = [(e["analyst"], str(e["share"]), str(e["utility"]), str(e["gain"])) for e in told["analysts"]]
    columns = ["analyst", ">share", ">utility", ">gain"]
    title = f"{told['metrics']['pipelines']} pipelines served; at present {told['present']['pipelines']}"
    _table(format_, "dpbalance-preview/1", "preview", told, title, columns, rows, all_rows)


@token_app.command()
def create(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="analyst, contributor, operator or auditor.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whom it speaks for.")],
    seconds: Annotated[float | None, typer.Option(metavar="N", help="How long it is valid.")] = None,
    label: Annotated[str, typer.Option(metavar="TEXT", help="What people call it.")] = "",
    key: Key = None,
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    format_: Shape = Format.table,
) -> None:
    """Make a token, which is shown this once."""
    more = {} if seconds is None else {"seconds": seconds}
    with _client(server, token_file) as client:
        made = client.create_token(role, name, key=key, label=label, **more)
    _told(format_, {"format": "dpbalance-token/1", **made}, made["secret"] or f"{made['id']} was shown already.")


@token_app.command(name="list")
def list_tokens(
    server: Server = SERVER, token_file: TokenFile = OPERATOR, all_rows: All = False, format_: Shape = Format.table
) -> None:
    """List tokens, without their secrets."""
    with _client(server, token_file) as client:
        rows = list(client.pages("/v1/tokens"))
    told = [(e["id"], e["role"], e["name"], e["label"], "revoked" if e["revoked"] else "") for e in rows]
    columns = ["id", "role", "name", "label", ""]
    _table(format_, "dpbalance-tokens/1", "tokens", rows, "Tokens", columns, told, all_rows)


@token_app.command()
def revoke(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The token's id, not its secret.")],
    server: Server = SERVER,
    token_file: TokenFile = OPERATOR,
    format_: Shape = Format.table,
) -> None:
    """Revoke a token."""
    with _client(server, token_file) as client:
        gone = client.revoke_token(id_)
    _told(format_, {"format": "dpbalance-token/1", **gone}, f"{gone['id']} is revoked.")


def _client(server: str, token_file: Path) -> Client:
    import os

    from dpbalance.clock import RealClock

    try:
        from dpbalance.client import PAUSE_S, Client
    except ImportError as problem:
        raise OptionError(
            f"talking to a server needs the package {problem.name!r}, which is not installed",
            hint="pip install 'dpbalance[service]'",
        ) from None
    secret = os.environ.get("DPBALANCE_TOKEN", "") or _read(token_file)
    if secret:
        return Client(server, secret)
    if token_file == OPERATOR and server.startswith(NEAR):
        typer.echo(f"dpbalance: waiting for a server that writes {token_file}", err=True)
        clock = RealClock()
        for _ in range(int(STARTING_S / PAUSE_S)):
            clock.sleep(PAUSE_S)
            if secret := _read(token_file):
                return Client(server, secret, retries=int(STARTING_S / PAUSE_S))
    raise OptionError(f"there is no token in DPBALANCE_TOKEN or {token_file}", hint="--token-file FILE")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _document(file: Path) -> Any:
    import sys

    from dpbalance.market.files import parse_json, read_json

    return parse_json(sys.stdin.buffer, "stdin") if str(file) == "-" else read_json(file)


def _for(analyst: str | None, ask: Any) -> dict[str, Any]:
    return {**ask, **({} if analyst is None else {"analyst": analyst})}


def _devices(text: str) -> Any:
    """`all`, `share=0.5`, `sample=3` or `named=A,B` as the API has it."""
    name, _, value = text.partition("=")
    if name == "named":
        return {"named": value.split(",")}
    return "all" if text == "all" else {name: _json(value, "devices")}


def _windows(text: str) -> Any:
    first, dots, last = text.partition("..")
    if dots:
        return {"first": first, "last": last}
    name, _, value = text.partition("=")
    return {name: _json(value, "windows")}


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f"--{what} cannot be read: {text[:60]!r}") from None


def _preference(text: str) -> Any:
    return "inf" if text == "inf" else _json(text, "beta")


def _sentence(found: dict[str, Any]) -> str:
    told = f"{found['id']} of {found['analyst']} is {found['state']}"
    if found["grant"] is not None:
        return f"{told}: grant {found['grant']} of round {found['round']}, {found['multiple']:.6g} times its demand."
    denial = found["denial"]
    why = "" if denial is None else f"; round {denial['round']} denied it: {denial['reason']}"
    return f"{told}{why}. dpbalance pipeline explain {found['id']} says more." if denial else f"{told}."


def _counts(denied: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in denied.items())


def _told(format_: Format, document: dict[str, Any], text: str) -> None:
    put_json(document) if format_ == Format.json else put(text)


def _table(
    format_: Format,
    name: str,
    field: str,
    document: Any,
    title: str,
    columns: list[str],
    rows: list[tuple[Any, ...]],
    all_rows: bool,
) -> None:
    if format_ == Format.json:
        put_json({"format": name, field: document})
        return
    from dpbalance.cli.tables import listed, rendered

    limit = None if all_rows else ROWS
    shown = [tuple(map(str, each)) for each in rows[:limit]]
    put(rendered(*listed(f"{title}: {len(rows)}", columns, shown, len(rows), limit)))

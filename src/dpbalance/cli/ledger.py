"""What can be asked of a ledger from a terminal? Books, statements and copies; and single blocks."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import All, Format, RoundFile, Shape, app, put, put_json, read
from dpbalance.errors import AlreadyRegistered, OptionError

if TYPE_CHECKING:
    from dpbalance.ledger import Balance, Ledger, Receipt
    from dpbalance.ledger.statements import Line

DATABASE = "sqlite:///dpbalance.db"

Database = Annotated[
    str, typer.Option(metavar="URL", envvar="DPBALANCE_DATABASE", help="sqlite:///FILE or postgresql://HOST/NAME.")
]
KeyFile = Annotated[Path | None, typer.Option(metavar="FILE", help="The key that signs; default beside the database.")]
Actor = Annotated[str, typer.Option(metavar="ROLE[:NAME]", help="On whose word; contributor:NAME may do more.")]
Key = Annotated[str | None, typer.Option(metavar="TEXT", help="Safe to be asked again under this key.")]
AtLeast = Annotated[str | None, typer.Option(metavar="SEQ[:HASH]", help="The last row that was acknowledged.")]
PublicKey = Annotated[str | None, typer.Option(metavar="HEX", help="The public key that init printed.")]
Token = Annotated[int | None, typer.Option(metavar="N", help="The token of the lease, if one is held.")]
Grants = Annotated[list[int], typer.Argument(metavar="GRANT", help="Numbers of grants.")]
Delta = Annotated[float, typer.Option(metavar="NUMBER", help="The delta at which epsilon is told.")]
Blocks = Annotated[list[str], typer.Argument(metavar="BLOCK", help="Names of blocks.")]


class Export(enum.StrEnum):
    csv = "csv"
    parquet = "parquet"


ledger_app = typer.Typer(help="What was promised, and what is spent.", no_args_is_help=True, rich_markup_mode=None)
block_app = typer.Typer(help="Single blocks of the ledger.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ledger_app, name="ledger")
app.add_typer(block_app, name="block")


@ledger_app.command()
def init(
    orders: Annotated[str | None, typer.Option(metavar="A,B", help="Renyi orders to count at; default one.")] = None,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Make a new, empty ledger, and the key that signs it."""
    from dpbalance.ledger import create_ledger

    with create_ledger(database, orders=_numbers(orders), key_file=key_file) as made:
        key = str(made.key_file)
        told = {"database": made.store.url, "orders": made.orders, "public_key": made.public, "key_file": key}
    text = (
        f"A new ledger at {told['database']}. The key that signs it is in {key}: keep it, it is in no backup.\n"
        f"Its public key, to be noted elsewhere for --public-key: {told['public_key']}"
    )
    _put(format_, "dpbalance-ledger/1", told, text)


@ledger_app.command()
def register(
    round_file: RoundFile,
    contributor: Annotated[str, typer.Option(metavar="NAME", help="Whose data the new devices hold.")] = "",
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Register the blocks of a round file, and their devices where they are new."""
    from dpbalance.ledger.ledger import device_of

    round_ = read(round_file)
    with _open(database, key_file) as ledger:
        if ledger.orders != round_.orders:
            raise OptionError(f"the round counts at orders {round_.orders}, the ledger at {ledger.orders}")
        if round_.spent.any():
            raise OptionError("something is spent in this round; a ledger begins with what it charged itself")
        devices = [device_of(name) for name in round_.blocks]
        known = ledger.contributors(devices)
        for name, stored in known.items():
            if contributor and stored != contributor:
                raise AlreadyRegistered(
                    f"device {name!r} is registered with the contributor {stored!r}, not {contributor!r}",
                    hint="--contributor with that name, or none",
                )
        new = [name for name in dict.fromkeys(devices) if name not in known]
        if new:
            ledger.register_devices(dict.fromkeys(new, contributor))
        receipt = ledger.register_arrays(round_.blocks, devices, round_.capacity, round_.unlocked)
    _receipt(format_, receipt, f"{len(round_.blocks)} blocks and {len(new)} new devices are registered")


@ledger_app.command()
def snapshot(round_file: RoundFile, database: Database = DATABASE, key_file: KeyFile = None) -> None:
    """Print the round of a file's pipelines on the blocks as they are charged now.

    The row after which it was taken, and which of the asked blocks are closed, is told on stderr.
    """
    from dpbalance.demand import Pipeline
    from dpbalance.market import round_to_json

    given = round_to_json(read(round_file))
    pipelines = [Pipeline(**each) for each in given["pipelines"]]
    with _open(database, key_file) as ledger:
        found = ledger.snapshot(pipelines, now=given["now"], priorities=given.get("priorities"))
        asked = list(dict.fromkeys(name for each in pipelines for name in each.demand))
        closed = [f"{each.block} is {each.state.word}" for each in ledger.balances(asked) if each.state.word != "open"]
    put_json(round_to_json(found.round))
    told = f"; nothing of these is on offer: {', '.join(closed)}" if closed else ""
    typer.echo(f"Taken after row {found.seq} (--seen {found.seq}){told}.", err=True)


@ledger_app.command()
def charge(
    round_file: RoundFile,
    allocation: Annotated[str, typer.Argument(metavar="ALLOCATION.json", help="What was decided on it.")],
    key: Key = None,
    token: Token = None,
    seen: Annotated[int | None, typer.Option(metavar="N", help="The row after which the snapshot was taken.")] = None,
    actor: Actor = "scheduler",
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Charge everything an allocation grants, or nothing of it."""
    from dpbalance.allocation import read_allocation

    decided = read_allocation(allocation, read(round_file))
    with _open(database, key_file) as ledger:
        receipt = ledger.charge(decided, key=key, token=token, seen=seen, actor=actor)
    _receipt(format_, receipt, f"{len(receipt.grants)} grants are charged")


@ledger_app.command()
def outbox(database: Database = DATABASE, key_file: KeyFile = None, format_: Shape = Format.table) -> None:
    """List the grants that are charged and were never dispatched."""
    with _open(database, key_file) as ledger:
        grants = ledger.outbox()
    _put(format_, "dpbalance-outbox/1", {"grants": grants}, " ".join(map(str, grants)) or "Nothing waits.")


@ledger_app.command()
def void(
    grants: Grants,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = "",
    key: Key = None,
    token: Token = None,
    actor: Actor = "operator",
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Give back what was charged for grants that were never dispatched."""
    with _open(database, key_file) as ledger:
        receipt = ledger.void(grants, note=note, key=key, token=token, actor=actor)
    _receipt(format_, receipt, f"{len(grants)} grants are void")


@ledger_app.command()
def verify(
    at_least_seq: AtLeast = None,
    public_key: PublicKey = None,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Recompute every balance and the chain of signatures from the rows."""
    from dataclasses import asdict

    with _open(database, key_file, at_least_seq) as ledger:
        verdict = ledger.verify(public_key=public_key)
    text = (
        f"Verified: {verdict.rows} rows, {verdict.entries} charges on {verdict.blocks} blocks.\n"
        f"It ends with {verdict.seq}:{verdict.hash}\nand is signed by {verdict.public_key}"
    )
    if verdict.clean or format_ == Format.json:
        _put(format_, "dpbalance-verdict/1", {"clean": verdict.clean, **asdict(verdict)}, text)
    verdict.demand()


@ledger_app.command()
def statement(
    device: Annotated[str | None, typer.Option(metavar="NAME", help="All blocks of this device.")] = None,
    block: Annotated[str | None, typer.Option(metavar="NAME", help="This block.")] = None,
    analyst: Annotated[str | None, typer.Option(metavar="NAME", help="All pipelines of this analyst.")] = None,
    pipeline: Annotated[str | None, typer.Option(metavar="NAME", help="This pipeline.")] = None,
    delta: Delta = 1e-5,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
    all_rows: All = False,
) -> None:
    """Tell who spent what, when, and on whose decision."""
    from dataclasses import asdict

    asked = {"device": device, "block": block, "analyst": analyst, "pipeline": pipeline}
    with _open(database, key_file) as ledger:
        lines = ledger.statement(delta=delta, **{kind: name for kind, name in asked.items() if name is not None})
    text = _statement_text(lines, delta, all_rows) if format_ == Format.table else ""
    _put(format_, "dpbalance-statement/1", {"delta": delta, "lines": [asdict(each) for each in lines]}, text)


@ledger_app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    as_: Annotated[Export, typer.Option("--as", help="One file of this kind for each table.")] = Export.csv,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Write every table to a file, all as of one moment."""
    with _open(database, key_file) as ledger:
        files = [str(each) for each in ledger.export(folder, format=as_)]
    _put(format_, "dpbalance-export/1", {"files": files}, "\n".join(files))


@ledger_app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Copy the ledger as of one moment, while others write to it; the key is not copied."""
    from dpbalance.ledger.copies import backup as copied

    with _open(database, key_file) as ledger:
        head = copied(ledger.store, file)
    told = {"file": str(file), "seq": head.seq, "hash": head.hash}
    _put(format_, "dpbalance-backup/1", told, f"{file} ends with row {head.seq}:{head.hash}")


@ledger_app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    at_least_seq: AtLeast = None,
    public_key: PublicKey = None,
    database: Database = DATABASE,
    format_: Shape = Format.table,
) -> None:
    """Make a new ledger out of a backup; one that ends before what was acknowledged is refused."""
    from dpbalance.ledger.copies import restored

    head = restored(file, database, at_least_seq=at_least_seq, public_key=public_key)
    told = {"file": str(file), "seq": head.seq, "hash": head.hash}
    _put(format_, "dpbalance-backup/1", told, f"The new ledger ends with row {head.seq}:{head.hash}")


@block_app.command("list")
def list_(
    database: Database = DATABASE, key_file: KeyFile = None, format_: Shape = Format.table, all_rows: All = False
) -> None:
    """List the blocks with what is left of them."""
    with _open(database, key_file) as ledger:
        balances = ledger.balances()
        told = [_balance(ledger, each) for each in balances]
    _put(format_, "dpbalance-blocks/1", {"blocks": told}, _blocks_text(told, all_rows))


@block_app.command()
def show(
    block: Annotated[str, typer.Argument(metavar="BLOCK", help="The name of a block.")],
    delta: Delta = 1e-5,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
    all_rows: All = False,
) -> None:
    """Show one block: its balance, and every charge on it."""
    from dataclasses import asdict

    from dpbalance.ledger.statements import people

    with _open(database, key_file) as ledger:
        told = _balance(ledger, ledger.balances([block])[0])
        told["epsilon"] = people(ledger, block, delta)
        lines = ledger.statement(block=block, delta=delta)
    document = {**told, "delta": delta, "lines": [asdict(each) for each in lines]}
    text = (
        ""
        if format_ == Format.json
        else "\n".join(
            [
                _blocks_text([told], all_rows),
                f"Spent altogether: epsilon {told['epsilon']:.4g} at delta {delta:g}.",
                _statement_text(lines, delta, all_rows),
            ]
        )
    )
    _put(format_, "dpbalance-block/1", document, text)


@block_app.command()
def unlock(
    blocks: Blocks,
    to: Annotated[str, typer.Option(metavar="AMOUNT", help="Epsilon; one number for each order, with commas.")],
    actor: Actor = "operator",
    key: Key = None,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Let these blocks be used up to this much; never less than before."""
    with _open(database, key_file) as ledger:
        amount = _epsilon(ledger, to)
        receipt = ledger.unlock(dict.fromkeys(blocks, amount), actor=actor, key=key)
    _receipt(format_, receipt, f"{len(blocks)} blocks are unlocked up to {to}")


@block_app.command()
def budget(
    block: Annotated[str, typer.Argument(metavar="BLOCK", help="The name of a block.")],
    to: Annotated[str, typer.Option(metavar="AMOUNT", help="Epsilon; one number for each order, with commas.")],
    actor: Actor = "operator",
    key: Key = None,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Lower a block's budget down to what is spent; only the contributor may raise it."""
    with _open(database, key_file) as ledger:
        receipt = ledger.set_budget(block, _epsilon(ledger, to), actor=actor, key=key)
    _receipt(format_, receipt, f"The budget of {block} is {to}")


@block_app.command()
def freeze(
    blocks: Blocks,
    actor: Actor = "operator",
    key: Key = None,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Let nothing more be charged on these blocks, whatever was decided before."""
    with _open(database, key_file) as ledger:
        receipt = ledger.freeze(blocks, actor=actor, key=key)
    _receipt(format_, receipt, f"{len(blocks)} blocks are frozen")


@block_app.command()
def thaw(
    blocks: Blocks,
    actor: Actor = "operator",
    key: Key = None,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Take a freeze back; only the contributor may."""
    with _open(database, key_file) as ledger:
        receipt = ledger.thaw(blocks, actor=actor, key=key)
    _receipt(format_, receipt, f"{len(blocks)} blocks are open")


@block_app.command()
def retire(
    blocks: Blocks,
    actor: Actor = "operator",
    key: Key = None,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Never let anything be charged on these blocks again."""
    with _open(database, key_file) as ledger:
        receipt = ledger.retire(blocks, actor=actor, key=key)
    _receipt(format_, receipt, f"{len(blocks)} blocks are retired")


def _open(database: str, key_file: Path | None, at_least_seq: str | None = None) -> Ledger:
    from dpbalance.ledger import open_ledger

    return open_ledger(database, key_file=key_file, at_least_seq=at_least_seq)


def _numbers(text: str | None, option: str = "--orders") -> list[float] | None:
    try:
        return None if text is None else [float(each) for each in text.split(",")]
    except ValueError:
        raise OptionError(f"{option} takes numbers separated by commas, not {text!r}") from None


def _epsilon(ledger: Ledger, text: str) -> float | tuple[float, ...]:
    """An amount as this ledger counts: the book refuses a wrong number of them."""
    given = _numbers(text, "--to") or []
    return given[0] if ledger.orders is None and len(given) == 1 else tuple(given)


def _put(format_: Format, name: str, told: dict[str, Any], text: str) -> None:
    if format_ == Format.json:
        put_json({"format": name, **told})
    else:
        put(text)


def _receipt(format_: Format, receipt: Receipt, sentence: str) -> None:
    told = {"seq": receipt.seq, "hash": receipt.hash, "kind": receipt.kind, "grants": list(receipt.grants)}
    _put(format_, "dpbalance-receipt/1", told, f"{sentence}: row {receipt.mark}")


def _balance(ledger: Ledger, balance: Balance) -> dict[str, Any]:
    from dpbalance.ledger.requests import shown

    amounts = {name: shown(getattr(balance, name), ledger.orders) for name in ("capacity", "unlocked", "spent")}
    return {"block": balance.block, "state": balance.state.word, **amounts}


def _blocks_text(told: Sequence[dict[str, Any]], all_rows: bool) -> str:
    from dpbalance.cli.tables import ROWS_MAX, listed, rendered

    limit = None if all_rows else ROWS_MAX
    columns = ["block", "state", ">capacity", ">unlocked", ">spent"]
    amounts = ("capacity", "unlocked", "spent")
    rows = [(each["block"], each["state"], *(_amount(each[name]) for name in amounts)) for each in told[:limit]]
    return rendered(*listed(f"Blocks: {len(told)}", columns, rows, len(told), limit))


def _statement_text(lines: Sequence[Line], delta: float, all_rows: bool) -> str:
    from dpbalance.cli.tables import ROWS_MAX, listed, number, rendered

    limit = None if all_rows else ROWS_MAX
    columns = [">row", ">grant", "pipeline", "analyst", "stage", "by", "block", ">cost", f">epsilon at {delta:g}"]
    columns.append("reason")
    rows = [
        (
            str(each.seq),
            str(each.grant),
            each.pipeline,
            each.analyst,
            each.stage,
            f"{each.scheduler} ({each.actor})",
            each.block or "",
            "" if each.cost is None else _amount(each.cost),
            "" if each.cost is None else number(each.epsilon),
            _reason_text(each.reason),
        )
        for each in lines[:limit]
    ]
    return rendered(*listed(f"Charges and denials: {len(lines)}", columns, rows, len(lines), limit))


def _reason_text(reason: str) -> str:
    """Why something was denied: `refused: B1 has 0.2 left, asked 0.5`."""
    from dpbalance.ledger.statements import told_reason

    told = told_reason(reason)
    why = str(told.get("reason", ""))
    if "state" in told:
        return f"{why}: {told['block']} is {told['state']}"
    if "left" in told:
        return f"{why}: {told['block']} has {_amount(told['left'])} left, asked {_amount(told['asked'])}"
    return why


def _amount(value: Any) -> str:
    """An amount in a table: one number, or those of all orders."""
    from dpbalance.cli.tables import number

    return " ".join(number(each, 9) for each in (value if isinstance(value, list) else [value]))

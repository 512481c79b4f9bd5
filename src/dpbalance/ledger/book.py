"""What may be written? The rules of the ledger: a page and a request give a change, or a refusal that says why.

Laws for future editors:
1. A rule looks at everything before it returns a change, and changes nothing itself: all of a request, or none of it.
2. A block with several orders holds while at one of them no more is spent than is unlocked; every order is charged.
3. The only refund is of a grant that was never dispatched.
4. Time decides nothing but whether a lease may be taken, and where tokens go on in a ledger made of a backup; what a
   lease allows is decided by its token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpbalance import errors
from dpbalance.allocation.proof import exact_totals
from dpbalance.amounts import MAX_UNITS, UNITS_PER_EPSILON, Units
from dpbalance.errors import (
    AlreadyRegistered,
    AmountError,
    BlockClosed,
    BudgetExceeded,
    DPBalanceError,
    Fenced,
    InputError,
    KeyReused,
    NotAllowed,
    NotInLedger,
    WrongStage,
)
from dpbalance.ledger.page import CEILING, Answer, Change, Entries, Head, JournalRow, Page, Seal, Terms
from dpbalance.ledger.requests import (
    Charge,
    Decision,
    Lease,
    Move,
    OnBlocks,
    RegisterBlocks,
    RegisterDevices,
    Request,
    SetBudget,
    SetState,
    Stage,
    State,
    Unlock,
    bytes_digest,
    canonical,
    shown,
)
from dpbalance.market.round import Indices

COMES_FROM = {
    Stage.DISPATCHED: {Stage.CHARGED},
    Stage.COMPLETED: {Stage.DISPATCHED},
    Stage.FAILED: {Stage.CHARGED, Stage.DISPATCHED},
    Stage.VOIDED: {Stage.CHARGED},
}
"""From which stages each stage can be reached: nothing leads from a dispatch to a refund."""

SETTLED = {
    "completed": Stage.COMPLETED,
    "error": Stage.FAILED,
    "timeout": Stage.FAILED,
    "lost": Stage.FAILED,
    "stopped-early": Stage.COMPLETED,
    "unknown": Stage.FAILED,
    "never-dispatched": Stage.VOIDED,
}
"""What becomes of a grant, by how its run ended. Only what provably never began is given back."""


TOKENS_APART = 2**20
"""So many tokens belong to each second in which a backup may have been brought back."""


class Outdated(Exception):
    """Names were read in another history of this ledger than the one that is there."""


class _Refused(Exception):
    """A decision that cannot be charged, with what its row and its denials say of it."""

    def __init__(self, error: DPBalanceError, **culprit: Any) -> None:
        super().__init__(error)
        self.error, self.culprit = error, culprit


def begun(meta: Mapping[str, str], now: float, seal: Seal) -> JournalRow:
    """The first row of every journal: what the ledger says of itself, signed."""
    body = {"format": meta["format"], "orders": json.loads(meta["orders"]), "public_key": meta["public_key"]}
    return seal(_row(Head(), now, "init", body))


def begun_again(page: Page, now: float, seal: Seal) -> None:
    """The first row after a backup was brought back: nobody holds the lease, and old tokens are worth nothing.

    How many tokens were given after the backup is not known. Therefore they go on in a range of their own, above all
    that were given in seconds before this one.
    """
    token = (max(page.head.token // TOKENS_APART, int(now)) + 1) * TOKENS_APART
    change = Change(kind="restored", body={"token": token, "ended": page.head.seq}, lease=(token, "", 0.0))
    page.take(seal(_row(page.head, now, change.kind, change.body)), change)


def decide(page: Page, request: Request, digest: str, now: float, seal: Seal) -> Answer:
    """The answer to one request, with the page as it is afterwards; a refusal leaves the page as it was.

    A refused charge is a decision, too: it gets a number, and the same key gets the same refusal again.
    """
    if request.known is not None and page.hashes.get(request.known[0]) != request.known[1]:
        raise Outdated
    if request.key is not None and request.key in page.answers:
        return _same(page, request, page.answers[request.key], digest)
    try:
        change = RULES[type(request)](page, request, now)
    except _Refused as refusal:
        assert isinstance(request, Charge)
        change = _refused(page, request, refusal)
    row = seal(_row(page.head, now, change.kind, change.body, request.actor, request.key, digest))
    page.take(row, change)
    return row.answer()


def _row(
    head: Head,
    now: float,
    kind: str,
    body: Mapping[str, Any],
    actor: str = "ledger",
    key: str | None = None,
    digest: str = "",
) -> JournalRow:
    """What comes after this head; a row that nobody asked for is digested by its body."""
    text = canonical(body).decode()
    return JournalRow(
        seq=head.seq + 1,
        time=now,
        kind=kind,
        actor=actor,
        key=key,
        digest=digest or hashlib.sha256(text.encode()).hexdigest(),
        body=text,
        prev=head.hash,
    )


def refusal_of(answer: Answer) -> DPBalanceError | None:
    """The refusal that was recorded, if it was one."""
    if answer.kind != "refused":
        return None
    told = json.loads(answer.body)
    kind: type[DPBalanceError] = getattr(errors, told["error"])
    return kind(told["message"], hint=told["hint"])


def charged(page: Page, request: Charge, now: float) -> Change:
    """A whole decision: every block is open and holds all of its grants, or nothing is charged."""
    _fence(page, request.token, "a charge")
    decision = request.decision
    if decision.orders != page.orders:
        raise InputError(f"the decision counts at orders {decision.orders}, the ledger at {page.orders}")
    at = page.find(request.ids)
    if len(np.unique(at)) != len(at):  # each block is looked at once, with all that is asked of it
        raise InputError("a block stands twice among those of the decision")
    closed = np.flatnonzero(page.state[at] != State.OPEN)
    if len(closed):
        culprit = int(closed[0])
        word = State(int(page.state[at[culprit]])).word
        error = BlockClosed(
            f"block {request.names[culprit]!r} is {word}, nothing can be charged on it",
            hint="deciding again on a fresh snapshot",
        )
        raise _Refused(error, block=request.names[culprit], state=word)
    asked = np.minimum(exact_totals(decision.block, decision.cost, len(at)), CEILING).astype(np.int64)
    spent = np.minimum(page.spent[at] + asked, CEILING)
    over = np.flatnonzero(~(spent <= page.unlocked[at]).any(axis=1))
    if len(over):
        raise _short(page, request.names[int(over[0])], int(at[over[0]]), asked[over[0]], len(over), request.seen)
    count = len(decision.pipelines)
    claims = [
        (pipeline, analyst, multiple, int(Stage.CHARGED), "")
        for pipeline, analyst, multiple in zip(decision.pipelines, decision.analysts, decision.multiples, strict=True)
    ]
    claims += _denials(decision)
    first = page.head.claims + 1
    entries = _entries(first, decision.owner, request.ids[decision.block], decision.cost)
    body = {
        "scheduler": decision.scheduler,
        "options": decision.options,
        "seen": request.seen,
        "first": first,
        "granted": count,
        "denied": len(decision.denied),
        "claims": claims_digest(first, claims),
        "entries": [len(entries.block), bytes_digest(entries.claim, entries.block, entries.cost)],
    }
    return Change(kind="charge", body=body, spent=(at, spent), claims=claims, entries=entries)


def moved(page: Page, request: Move, now: float) -> Change:
    """Grants dispatched, completed, failed or voided; a void gives back what was charged.

    Whoever carries grants out does so without the lease, which is about deciding: stages alone keep a grant from being
    dispatched twice or given back late. A scheduler shows its token, and is refused once it has been succeeded.
    """
    if request.token is not None:
        _fence(page, request.token, request.stage.word)
    if not request.grants or len(set(request.grants)) != len(request.grants):
        raise InputError("one or more distinct grants must be named")
    for grant in request.grants:
        stage = page.stages.get(grant)
        if stage is None:
            raise NotInLedger(f"there is no grant {grant}", hint="dpbalance ledger statement")
        if stage not in COMES_FROM[request.stage]:
            raise WrongStage(
                f"grant {grant} is {stage.word}, it cannot become {request.stage.word}",
                hint="dpbalance ledger statement; only a grant that was never dispatched can be voided",
            )
    body = {"grants": list(request.grants), "note": request.note}
    spent = None
    if request.stage == Stage.VOIDED:
        assert page.entries is not None
        mine = page.entries.of(request.grants)
        ids, place = np.unique(mine.block, return_inverse=True)
        at = page.find(ids)
        back = exact_totals(place, mine.cost, len(ids))
        held = page.spent[at]
        # an order that was closed for good has lost count and stays closed
        spent = (at, np.where(held == CEILING, CEILING, held - back).astype(np.int64))
    return Change(kind=request.stage.word, body=body, spent=spent, stages=(request.grants, request.stage))


def registered_devices(page: Page, request: RegisterDevices, now: float) -> Change:
    _refuse_known(page, request.devices, "device")
    first = page.head.devices + 1
    rows = [
        (first + at, name, contributor)
        for at, (name, contributor) in enumerate(zip(request.devices, request.contributors, strict=True))
    ]
    return Change(kind="register-devices", body={"first": first, "devices": list(map(list, rows))}, devices=rows)


def registered_blocks(page: Page, request: RegisterBlocks, now: float) -> Change:
    _refuse_known(page, request.blocks, "block")
    if not (request.unlocked >= 0).all() or not (request.capacity <= MAX_UNITS).all():
        raise AmountError("budgets must be from 0 up and in range")
    above = np.flatnonzero((request.unlocked > request.capacity).any(axis=1))
    if len(above):
        raise AmountError(f"block {request.blocks[int(above[0])]!r} unlocks more than its capacity")
    first = page.head.blocks + 1
    ids = np.arange(first, first + len(request.blocks))
    terms = Terms(ids=ids, state=np.zeros_like(ids), unlocked=request.unlocked, capacity=request.capacity)
    body = {"first": first, "blocks": len(ids), "names": names_digest(request.blocks, request.device), **_told(terms)}
    return Change(kind="register-blocks", body=body, terms=terms, blocks=(ids, request.blocks, request.device))


def budgeted(page: Page, request: SetBudget, now: float) -> Change:
    """Another capacity: lower down to where a block still holds; higher only by the contributor."""
    at = page.find(request.ids)
    raised = np.flatnonzero((request.capacity > page.capacity[at]).any(axis=1))
    for place in raised.tolist():
        _contributor_only(request, place, "raise the budget of")
    _refuse_retired(page, request, at)
    if not ((request.capacity >= 0) & (request.capacity <= MAX_UNITS)).all():
        raise AmountError("budgets must be from 0 up and in range")
    full = page.unlocked[at] == page.capacity[at]
    unlocked = np.where(full, request.capacity, np.minimum(page.unlocked[at], request.capacity))
    below = np.flatnonzero(~(page.spent[at] <= unlocked).any(axis=1))
    if len(below):
        place = int(below[0])
        spent = shown(page.spent[at[place]], page.orders)
        raise BudgetExceeded(
            f"block {request.names[place]!r} has {spent} spent already, its budget cannot be lowered to "
            f"{shown(request.capacity[place], page.orders)}",
            hint="a budget of at least what is spent",
        )
    return _with_terms("budget", request, at, page.state[at], unlocked, request.capacity)


def unlocked(page: Page, request: Unlock, now: float) -> Change:
    """More may be used; never less, and never more than the capacity."""
    at = page.find(request.ids)
    _refuse_retired(page, request, at)
    above = np.flatnonzero((request.unlocked > page.capacity[at]).any(axis=1))
    if len(above):
        raise AmountError(f"block {request.names[int(above[0])]!r} cannot unlock more than its capacity")
    more = np.maximum(request.unlocked, page.unlocked[at])
    return _with_terms("unlock", request, at, page.state[at], more, page.capacity[at])


def put_in_state(page: Page, request: SetState, now: float) -> Change:
    """Frozen or retired by anybody, for both only protect; thawed only by the contributor."""
    at = page.find(request.ids)
    _refuse_retired(page, request, at)
    if request.state == State.OPEN:
        for place in np.flatnonzero(page.state[at] == State.FROZEN).tolist():
            _contributor_only(request, place, "thaw")
    kind = {State.OPEN: "thaw", State.FROZEN: "freeze", State.RETIRED: "retire"}[request.state]
    state = np.full(len(at), int(request.state))
    return _with_terms(kind, request, at, state, page.unlocked[at], page.capacity[at])


def leased(page: Page, request: Lease, now: float) -> Change:
    """A new token for whoever shows none, the same for one that stays; none is given while another's time runs.

    The same name without a token may be another process, so it inherits nothing.
    """
    head = page.head
    mine = head.holder == request.holder and request.token in (None, head.token)
    if request.seconds is None:
        if not mine:
            raise Fenced(f"{request.holder!r} does not hold the lease", hint="nothing: it has ended already")
        return Change(kind="release", body={"token": head.token}, lease=(head.token, "", 0.0))
    if head.holder not in ("", request.holder) and now < head.until:
        raise Fenced(
            f"{head.holder!r} holds the lease with token {head.token} for another {head.until - now:.3g} s",
            hint="waiting until it ends",
        )
    if request.token is not None and not mine:
        raise Fenced(
            f"{request.holder!r} lost the lease with token {request.token}: it is at token {head.token}",
            hint="standing down, or taking the lease without a token",
        )
    token = head.token + 1 if request.token is None else head.token
    until = now + request.seconds
    body = {"token": token, "holder": request.holder, "until": until}
    return Change(kind="lease", body=body, lease=(token, request.holder, until))


RULES: dict[type[Request], Callable[[Page, Any, float], Change]] = {
    Charge: charged,
    Lease: leased,
    Move: moved,
    RegisterBlocks: registered_blocks,
    RegisterDevices: registered_devices,
    SetBudget: budgeted,
    SetState: put_in_state,
    Unlock: unlocked,
}


def claims_digest(first: int, claims: Sequence[tuple[Any, ...]]) -> str:
    """SHA-256 over what was decided for each pipeline, stages left out: those move on."""
    rows = [[first + at, pipeline, who, multiple, why] for at, (pipeline, who, multiple, _, why) in enumerate(claims)]
    return hashlib.sha256(canonical(rows)).hexdigest()


def names_digest(names: Sequence[str], devices: Indices) -> str:
    """SHA-256 over the names of blocks and the numbers of their devices."""
    return hashlib.sha256("\n".join(names).encode() + bytes_digest(devices).encode()).hexdigest()


def _same(page: Page, request: Request, answer: Answer, digest: str) -> Answer:
    if answer.digest != digest:
        raise KeyReused(
            f"the key {request.key!r} was used for something else, in row {answer.seq} of the journal", hint="a new key"
        )
    if answer.kind == "lease" and (answer.told["token"], answer.told["holder"]) != (page.head.token, page.head.holder):
        raise Fenced(
            f"the lease that row {answer.seq} gave has passed on: it is at token {page.head.token}", hint="a new key"
        )
    return answer


def _refused(page: Page, request: Charge, refusal: _Refused) -> Change:
    """Denials of all that was granted, naming the culprit, beside those that the scheduler made itself."""
    decision, error = request.decision, refusal.error
    reason = canonical({"reason": "refused", **refusal.culprit}).decode()
    claims = [
        (pipeline, analyst, 0.0, int(Stage.DENIED), reason)
        for pipeline, analyst in zip(decision.pipelines, decision.analysts, strict=True)
    ]
    claims += _denials(decision)
    first = page.head.claims + 1
    body = {
        "error": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "scheduler": decision.scheduler,
        "first": first,
        "denied": len(claims),
        "claims": claims_digest(first, claims),
    }
    return Change(kind="refused", body=body, claims=claims)


def _denials(decision: Decision) -> Iterable[tuple[str, str, float, int, str]]:
    for each in decision.denied:
        reason = canonical({key: each[key] for key in each if key not in ("pipeline", "analyst")}).decode()
        yield each["pipeline"], each["analyst"], 0.0, int(Stage.DENIED), reason


def _entries(first: int, owner: Indices, block: Indices, cost: Units) -> Entries:
    claim = owner + first
    if len(block) > 1 and not ((np.diff(claim) > 0) | ((np.diff(claim) == 0) & (np.diff(block) > 0))).all():
        order = np.lexsort((block, claim))
        claim, block, cost = claim[order], block[order], cost[order]
    return Entries(claim=claim, block=block, cost=cost)


def _short(page: Page, name: str, at: int, asked: Units, count: int, seen: int | None) -> _Refused:
    """Names the block, at the order at which the least is missing."""
    left = page.unlocked[at] - page.spent[at]
    best = int(np.argmin(asked - left))
    where = "" if page.orders is None else f" at order {page.orders[best]:g}, its best"
    has, wants = max(int(left[best]), 0) / UNITS_PER_EPSILON, int(asked[best]) / UNITS_PER_EPSILON
    short = (int(asked[best]) - max(int(left[best]), 0)) / UNITS_PER_EPSILON
    more = f" (and {count - 1} more blocks)" if count > 1 else ""
    since = "" if seen is None else f" since the snapshot at {seen}"
    error = BudgetExceeded(
        f"block {name!r} has {has:.9g} left{where}{since}, the decision asks {wants:.9g} (short by {short:.9g}){more}",
        hint="deciding again on a fresh snapshot",
    )
    return _Refused(error, block=name, asked=wants, left=has)


def _with_terms(kind: str, request: OnBlocks, at: Indices, state: Indices, open_: Units, capacity: Units) -> Change:
    terms = Terms(ids=request.ids, state=state, unlocked=open_, capacity=capacity)
    return Change(kind=kind, body=_told(terms), terms=terms, places=at)


def _told(terms: Terms) -> dict[str, Any]:
    return {"terms": [len(terms.ids), bytes_digest(terms.ids, terms.state, terms.unlocked, terms.capacity)]}


def _fence(page: Page, token: int | None, what: str) -> None:
    head = page.head
    if token is None and head.holder:
        raise Fenced(f"{head.holder!r} holds the lease; {what} needs its token", hint="taking the lease first")
    if token is not None and (token != head.token or not head.holder):
        raise Fenced(
            f"token {token} has been succeeded: the lease is at token {head.token}",
            hint="standing down; another scheduler decides now",
        )


def _contributor_only(request: OnBlocks, place: int, what: str) -> None:
    role, _, name = request.actor.partition(":")
    owner = request.contributors[place]
    if not owner:
        raise NotAllowed(
            f"only a contributor may {what} block {request.names[place]!r}, and its device was registered without one"
        )
    if role != "contributor" or name != owner:
        raise NotAllowed(
            f"only the contributor {owner!r} may {what} block {request.names[place]!r}, not {request.actor!r}",
            hint="asking as contributor:NAME",
        )


def _refuse_retired(page: Page, request: OnBlocks, at: Indices) -> None:
    gone = np.flatnonzero(page.state[at] == State.RETIRED)
    if len(gone):
        raise BlockClosed(f"block {request.names[int(gone[0])]!r} is retired, which cannot be undone")


def _refuse_known(page: Page, names: Sequence[str], kind: str) -> None:
    if page.names:
        for name in names:
            if (kind, name) in page.names:
                raise AlreadyRegistered(f"{kind} {name!r} stands in the ledger already", hint="dpbalance block list")
    if len(set(names)) != len(names):
        raise InputError(f"a {kind} stands twice among those to be registered")

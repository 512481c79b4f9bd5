"""What can go wrong, and how is it told? One tree of errors and one table of codes.

    DPBalanceError
        InputError            the caller gave something that cannot be used
            AmountError
            FileFormatError
            OptionError
            UnknownScheduler
            RecipeError       a training recipe without a finite cost
        BudgetExceeded        an allocation that would overspend or break a promise
        LedgerRefusal         what the rules of the ledger do not allow
            BlockClosed       a block that is frozen or retired
            NotInLedger       a device, block or grant nobody registered
            NotAllowed        something only the contributor may do
            KeyReused         an idempotency key that came before with something else
            Fenced            a scheduler whose lease has passed to another
            WrongStage        a grant that is not where this step starts from
            AlreadyRegistered a name that stands in the ledger
        ServiceRefusal        a request that the service does not serve
            Unauthenticated   no token, or one that is unknown, revoked or over
            NotFound          nothing there, or nothing that this token may see
            WrongMethod       a path that is there, asked in a way it is not served
            NotNow            something that is under way, or over
            TooLarge          more than one request may carry
            WrongVersion      settings that somebody else has changed since
            VersionMissing    a change of settings that does not say of which version
            TooSlow           a request whose body was not there in time
            TooMany           more requests of one token than it may make
        Overloaded            a queue that is full
        Unreachable           a server that does not answer
        LedgerUnavailable     the store could not be reached, or did not answer
        LedgerDamaged         what is stored contradicts itself
        PlanRefused           a device agent that will not carry out a plan: tampered, expired, over its cap
        EngineError           a run that could not be started, or came to nothing
        SolverError           a kernel could not prove its answer

A message is a sentence with the culprit and the numbers; `hint` is the next step. The code, the HTTP status and the
exit status of each come from `TABLE`; docs/errors.md explains each of them under its code.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    code: str
    http_status: int
    exit_status: int


class DPBalanceError(Exception):
    """The root of everything this package raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def row(self) -> Row:
        return TABLE[type(self).__name__]

    def __str__(self) -> str:
        text = f"{self.row.code} {type(self).__name__}: {self.message}"
        return f"{text}. Try: {self.hint}" if self.hint else text


class InputError(DPBalanceError):
    """Something given by the caller cannot be used."""


class AmountError(InputError):
    """A privacy amount that is not a finite, non-negative number in range."""


class FileFormatError(InputError):
    """A file that is not what it should be; names the place in the file."""


class OptionError(InputError):
    """An option that does not exist or has a value it cannot have."""


class UnknownScheduler(InputError):
    """No scheduler of this name is registered."""


class BudgetExceeded(DPBalanceError):
    """An allocation would spend more than is left, or breaks the one-or-more rule."""


class LedgerRefusal(DPBalanceError):
    """What the rules of the ledger do not allow; nothing was written."""


class BlockClosed(LedgerRefusal):
    """A block that its contributor froze, or that is retired."""


class NotInLedger(LedgerRefusal):
    """A device, block or grant that nobody registered."""


class NotAllowed(LedgerRefusal):
    """Something that only the contributor of the data may do."""


class KeyReused(LedgerRefusal):
    """An idempotency key that was used before for something else."""


class Fenced(LedgerRefusal):
    """A scheduler that does not hold the lease, or no longer does."""


class WrongStage(LedgerRefusal):
    """A grant that is not at the stage from which this step starts: a refund after dispatch, for example."""


class AlreadyRegistered(LedgerRefusal):
    """A name that stands in the ledger already."""


class ServiceRefusal(DPBalanceError):
    """A request that the service does not serve as it is, such as one without its Idempotency-Key."""


class Unauthenticated(ServiceRefusal):
    """No token, or one that is unknown, revoked or over."""


class NotFound(ServiceRefusal):
    """Nothing is there, or nothing that this token may see."""


class WrongMethod(ServiceRefusal):
    """The path is there, but it is not served in this way."""


class NotNow(ServiceRefusal):
    """The same request is under way, or what it is about is over."""


class TooLarge(ServiceRefusal):
    """A request that carries more than one may."""


class WrongVersion(ServiceRefusal):
    """Settings that have been changed since the version this change starts from."""


class VersionMissing(ServiceRefusal):
    """A change of settings that does not say from which version it starts."""


class TooSlow(ServiceRefusal):
    """A request whose body was not there in time."""


class TooMany(ServiceRefusal):
    """More requests than one token may make."""


class Overloaded(DPBalanceError):
    """A queue is full; nothing was taken in."""


class Unreachable(DPBalanceError):
    """The server does not answer; whether it did what was asked is not known."""


class LedgerUnavailable(DPBalanceError):
    """The store could not be reached or did not answer; whether the write happened is not known."""


class LedgerDamaged(DPBalanceError):
    """What is stored contradicts itself, or is older than what was acknowledged."""


class PlanRefused(DPBalanceError):
    """A device agent does not carry out this plan: tampered with, expired, not for it, or over its own cap."""


class EngineError(DPBalanceError):
    """A run could not be started, is not known, or came to nothing."""


class SolverError(DPBalanceError):
    """A kernel ended without an answer it can prove."""


class RecipeError(InputError):
    """A training recipe that has no finite privacy cost at the asked orders."""


TABLE: dict[str, Row] = {
    "DPBalanceError": Row("DPB-100", 500, 1),
    "InputError": Row("DPB-101", 422, 3),
    "AmountError": Row("DPB-102", 422, 3),
    "FileFormatError": Row("DPB-103", 400, 3),
    "OptionError": Row("DPB-104", 422, 4),
    "UnknownScheduler": Row("DPB-105", 404, 4),
    "RecipeError": Row("DPB-106", 422, 3),
    "BudgetExceeded": Row("DPB-203", 409, 5),
    "LedgerRefusal": Row("DPB-210", 409, 5),
    "BlockClosed": Row("DPB-211", 409, 5),
    "NotInLedger": Row("DPB-212", 404, 3),
    "NotAllowed": Row("DPB-213", 403, 5),
    "KeyReused": Row("DPB-214", 422, 5),
    "Fenced": Row("DPB-215", 409, 5),
    "WrongStage": Row("DPB-216", 409, 5),
    "AlreadyRegistered": Row("DPB-217", 409, 5),
    "ServiceRefusal": Row("DPB-400", 400, 4),
    "Unauthenticated": Row("DPB-401", 401, 8),
    "NotFound": Row("DPB-404", 404, 3),
    "WrongMethod": Row("DPB-405", 405, 4),
    "NotNow": Row("DPB-409", 409, 5),
    "TooSlow": Row("DPB-408", 408, 9),
    "WrongVersion": Row("DPB-412", 412, 5),
    "TooLarge": Row("DPB-413", 413, 3),
    "VersionMissing": Row("DPB-428", 428, 4),
    "TooMany": Row("DPB-429", 429, 9),
    "Overloaded": Row("DPB-503", 503, 9),
    "Unreachable": Row("DPB-504", 503, 7),
    "PlanRefused": Row("DPB-220", 409, 10),
    "EngineError": Row("DPB-320", 502, 10),
    "SolverError": Row("DPB-301", 500, 6),
    "LedgerUnavailable": Row("DPB-310", 503, 7),
    "LedgerDamaged": Row("DPB-311", 500, 7),
}
"""Name of the error: its code, the HTTP status and the exit status. Exit 2 is a wrong command line, as everywhere."""


def of_code(code: str, message: str, hint: str = "") -> DPBalanceError:
    """The error that another process told of by its code.

    >>> of_code("DPB-203", "block B1 has 0.1 left")
    BudgetExceeded('block B1 has 0.1 left')
    """
    names = {row.code: name for name, row in TABLE.items()}
    kind: type[DPBalanceError] = globals()[names.get(code, "DPBalanceError")]
    return kind(message, hint=hint)

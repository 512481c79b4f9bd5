"""How is a refusal told over HTTP? RFC 9457 problems out of the errors table, whatever went wrong."""

from __future__ import annotations

import json
import re
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dpbalance.errors import TABLE, DPBalanceError

MEDIA = "application/problem+json"
DOCS = "https://github.com/dpbalance/dpbalance/blob/main/docs/errors.md"
RETRY_AFTER_S = 1
ERRORS_MAX = 20
"""More wrong fields than this are not listed."""

AT_MAX = 100
"""Characters of the place of a wrong field; its names may be anybody's."""

OF_STATUS = {
    404: "NotFound",
    405: "WrongMethod",
    408: "TooSlow",
    413: "TooLarge",
    401: "Unauthenticated",
    503: "Overloaded",
}
SENTENCES = {404: "nothing is served here", 405: "this path is not served in this way"}
AGAIN = {429, 503}


def problem(name: str, detail: str, hint: str = "", *, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """The answer for an error of the table."""
    row = TABLE[name]
    told = {
        "type": f"{DOCS}#{row.code.lower()}",
        "title": name,
        "status": row.http_status,
        "detail": detail,
        "code": row.code,
        "hint": hint,
        **more,
    }
    extra = dict(headers or {})
    if row.http_status in AGAIN:
        extra["Retry-After"] = str(RETRY_AFTER_S)
    if row.http_status == 401:
        extra["WWW-Authenticate"] = "Bearer"
    return Response(json.dumps(told), row.http_status, extra, MEDIA)


async def refused(_: Request, error: Exception) -> Response:
    """What this package raises on purpose."""
    assert isinstance(error, DPBalanceError)
    return problem(type(error).__name__, error.message, error.hint)


async def not_http(request: Request, error: Exception) -> Response:
    """What the framework refuses."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(_served(request)))
    name = OF_STATUS.get(error.status_code, "ServiceRefusal")
    detail = SENTENCES.get(error.status_code, str(error.detail))
    return problem(name, detail, headers=headers)


def _served(request: Request) -> set[str]:
    """Every method in which this path is served; the framework knows one route at a time."""
    document = request.app.openapi()["paths"]
    for path, operations in document.items():
        if re.fullmatch(re.sub(r"{[^}]+}", "[^/]+", path), request.url.path):
            return {each.upper() for each in operations}
    return set()


async def not_valid(_: Request, error: Exception) -> Response:
    """A value that cannot be: where it stands and why, never the value itself."""
    assert isinstance(error, RequestValidationError)
    listed = [
        {"at": ".".join(map(str, each["loc"]))[:AT_MAX], "why": each["msg"]} for each in error.errors()[:ERRORS_MAX]
    ]
    first = listed[0] if listed else {"at": "", "why": ""}
    if any(each["at"].lower() == "header.idempotency-key" for each in listed):
        return problem(
            "ServiceRefusal", "the header Idempotency-Key is missing or no key", "any text that is new", errors=listed
        )
    return problem("InputError", f"{first['at']}: {first['why']}", errors=listed)

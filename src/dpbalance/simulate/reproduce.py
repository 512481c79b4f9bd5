"""Does the paper's evaluation reproduce? One sweep, one report; the report can be made again from the result files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dpbalance.errors import FileFormatError
from dpbalance.feedback.report import chart_language, write
from dpbalance.simulate.reproduction.studies import Plan, Studies
from dpbalance.simulate.sweep import sweep, write_whole

FORMAT = "dpbalance-reproduction/1"
PLAN = "reproduction.json"


def reproduce(
    out: str | Path,
    plan: Plan | None = None,
    *,
    workers: int | str = 1,
    progress: Callable[[int, int], object] | None = None,
) -> list[Path]:
    """Run what is not there yet, and write the report, its pictures and the headline numbers; the files written."""
    chart_language()  # refuse before the work, not after it
    plan, folder = plan or Plan(), Path(out)
    studies = Studies.of(plan)
    results = sweep(studies.cells(), folder, workers=workers, progress=progress, reference="dpbalance")
    from dpbalance.simulate.reproduction.findings import report_of
    from dpbalance.simulate.reproduction.headlines import headlines
    from dpbalance.simulate.reproduction.measured import Measured

    measured = Measured(results=results)
    found = [each.document for each in headlines(measured, studies)]
    texts = {PLAN: {"format": FORMAT, **plan.document}, "headlines.json": found}
    for name, document in texts.items():
        write_whole(folder / name, (json.dumps(_written(document), indent=1, allow_nan=False) + "\n").encode())
    return [*write(report_of(measured, studies, plan), folder), *(folder / name for name in texts)]


def report(folder: str | Path, progress: Callable[[int, int], object] | None = None) -> list[Path]:
    """The report of a reproduction again, from its result files; a cell that is missing is run."""
    path = Path(folder) / PLAN
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        plan = Plan(**document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise FileFormatError(
            f"{folder} holds no reproduction: {path.name}: {getattr(problem, 'strerror', None) or problem}",
            hint="dpbalance reproduce paper --out DIR",
        ) from None
    return reproduce(folder, plan, progress=progress)


def _written(document: object) -> object:
    """As JSON has it: null for what one seed cannot say."""
    if isinstance(document, dict):
        return {name: _written(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [_written(each) for each in document]
    return None if isinstance(document, float) and document != document else document

"""How is a finding told? Sections of sentences, tables and pictures, as Markdown, as a page that opens offline, as PNG.

The page loads nothing: the program that draws its charts is taken from the installed chart package and written into it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from dpbalance.errors import FileFormatError, OptionError

Spec = Mapping[str, Any]

STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --faint: #57606a; --line: #d8dee4; --soft: #f6f8fa; }
* { box-sizing: border-box; }
body { margin: 0; background: white; color: var(--ink);
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
main { max-width: 1020px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 12px; }
h2 { font-size: 22px; margin: 56px 0 8px; padding-top: 16px; border-top: 1px solid var(--line); }
p, ul { max-width: 760px; } li { margin: 4px 0; }
nav { margin: 20px 0 0; font-size: 15px; columns: 2; max-width: 760px; } nav a { display: block; padding: 2px 0; }
a { color: #0550ae; } a:focus-visible { outline: 2px solid #0550ae; outline-offset: 2px; }
.wide { overflow-x: auto; margin: 20px 0 28px; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 0 0 8px; }
th, td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--faint); font-weight: 600; border-bottom-width: 2px; }
td.n, th.n { text-align: right; white-space: nowrap; }
figure { margin: 20px 0 28px; overflow-x: auto; }
@media print { nav { display: none; } h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""

DRAW = (
    "for (const it of document.querySelectorAll('figure[data-chart]')) "
    "vegaEmbed(it, JSON.parse(document.getElementById(it.dataset.chart).textContent), "
    "{mode: 'vega-lite', actions: false, renderer: 'svg', tooltip: {theme: 'light'}});"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts; a column whose name begins with > holds numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, and what it shows for those who cannot see it."""

    name: str
    alt: str
    spec: Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A list of sentences."""

    points: tuple[str, ...]


Part = str | Points | Table | Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    title: str
    lead: str
    sections: tuple[Section, ...]

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(part for each in self.sections for part in each.parts if isinstance(part, Figure))


def write(report: Report, out: Path) -> list[Path]:
    """Write report.html, findings.md and each picture as PNG and SVG; the files, in that order."""
    charts = chart_language()
    files: dict[str, bytes] = {
        "report.html": page(report, charts.javascript()).encode(),
        "findings.md": markdown(report).encode(),
    }
    for each in report.figures:
        files[f"{each.name}.png"] = charts.png(each.spec)
        files[f"{each.name}.svg"] = charts.svg(each.spec).encode()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (out / name).write_bytes(content)
    except OSError as problem:
        raise FileFormatError(f"cannot write {problem.filename}: {problem.strerror or problem}") from None
    return [out / name for name in files]


def chart_language() -> Any:
    """The charts, or one sentence on what to install."""
    try:
        import vl_convert  # noqa: F401

        from dpbalance.feedback import charts
    except ImportError as problem:
        raise OptionError(
            f"charts need the package {problem.name!r}, which is not installed", hint="pip install 'dpbalance[plots]'"
        ) from None
    return charts


def markdown(report: Report) -> str:
    """The report as a page of text with links to its pictures."""
    lines = [f"# {report.title}", "", report.lead, ""]
    for section in report.sections:
        lines += [f"## {section.title}", ""]
        for part in section.parts:
            lines += [*_markdown_part(part), ""]
    return "\n".join(lines)


def _markdown_part(part: Part) -> Sequence[str]:
    if isinstance(part, str):
        return [part]
    if isinstance(part, Points):
        return [f"- {each}" for each in part.points]
    if isinstance(part, Figure):
        return [f"![{part.alt}]({part.name}.png)"]
    head = [each.lstrip(">") for each in part.columns]
    rule = ["---:" if each.startswith(">") else "---" for each in part.columns]
    rows = [[cell.replace("|", "\\|") for cell in row] for row in part.rows]
    return [f"**{part.title}**", "", *(f"| {' | '.join(row)} |" for row in (head, rule, *rows))]


def page(report: Report, program: str) -> str:
    """The report as one HTML file."""
    links = "".join(f'<a href="#s{at}">{escape(each.title)}</a>' for at, each in enumerate(report.sections))
    body = [f"<h1>{escape(report.title)}</h1><p>{escape(report.lead)}</p><nav>{links}</nav>"]
    for at, section in enumerate(report.sections):
        body.append(f'<section><h2 id="s{at}">{escape(section.title)}</h2>')
        body += [_html_part(part) for part in section.parts]
        body.append("</section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(report.title)}</title><style>{STYLE}</style></head>\n'
        f"<body><main>{''.join(body)}</main>\n"
        f'<script type="module">{program}\n{DRAW}</script></body></html>\n'
    )


def _html_part(part: Part) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>\n"
    if isinstance(part, Points):
        return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in part.points)}</ul>\n"
    if isinstance(part, Figure):
        spec = json.dumps(part.spec).replace("<", "\\u003c")
        return (
            f'<script type="application/json" id="{part.name}">{spec}</script>\n'
            f'<figure data-chart="{part.name}" role="img" aria-label="{escape(part.alt)}"></figure>\n'
        )
    kinds = [' class="n"' if each.startswith(">") else "" for each in part.columns]
    named = zip(part.columns, kinds, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escape(each.lstrip(">"))}</th>' for each, kind in named)
    rows = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>"
        for row in part.rows
    )
    table = f"<table><caption>{escape(part.title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="wide">{table}</div>\n'

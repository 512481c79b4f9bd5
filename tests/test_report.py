"""Does a report tell the same in every form, and does its page load nothing?"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dpbalance.errors import OptionError
from dpbalance.feedback import charts, report
from dpbalance.feedback.charts import SCHEDULERS, Axis, Panel, Series
from dpbalance.feedback.report import Figure, Points, Report, Section, Table

OUTSIDE = re.compile(
    r"<(?:script|img|iframe|embed|source)[^>]*\ssrc=|<link[^>]*href=\"(?!data:)|@import|url\((?!data:|#)|"
    r"<(?:object|base|meta http-equiv)",
    re.IGNORECASE,
)
"""Whatever would make a browser fetch something."""

NAN = float("nan")
ROWS = [
    {"x": 1, "label": "one", "series": "DPBalance", "mean": 1.0, "low": 0.5, "high": 1.5},
    {"x": 2, "label": "two", "series": "DPF", "mean": 2.0, "low": NAN, "high": NAN},
]
LOOKS = [SCHEDULERS["dpbalance"], SCHEDULERS["dpf"]]
PANEL = Panel(title="panel", rows=ROWS, x=Axis(title="x", rule=1.0), y=Axis(title="y"))


def outside(page: str) -> list[str]:
    """What of a page is fetched from somewhere; a program only talks of addresses, and does not stand in the markup."""
    markup = re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", page, flags=re.DOTALL)
    return OUTSIDE.findall(markup)


def told() -> Report:
    spec = charts.spec_of(charts.lines("Lines & <bars>", "of two", [PANEL], LOOKS))
    table = Table(title="T", columns=("who", ">how much"), rows=(("a|b", "1"), ("<c>", "2")))
    figure = Figure(name="lines", alt='A "line"', spec=spec)
    section = Section(title="First", parts=("A sentence.", Points(points=("one", "two")), table, figure))
    return Report(title="A <report>", lead="What it is.", sections=(section,))


def test_a_report_is_a_page_a_text_and_pictures(tmp_path: Path) -> None:
    files = report.write(told(), tmp_path / "new")
    assert [each.name for each in files] == ["report.html", "findings.md", "lines.png", "lines.svg"]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    text = files[1].read_text(encoding="utf-8")
    assert "| a\\|b | 1 |" in text
    assert '![A "line"](lines.png)' in text


def test_the_page_loads_nothing_and_reads_its_charts_from_itself(tmp_path: Path) -> None:
    page = report.write(told(), tmp_path)[0].read_text(encoding="utf-8")
    assert not outside(page)
    assert "A &lt;report&gt;" in page
    found = re.findall(r'<script type="application/json" id="lines">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    spec = json.loads(found[0])
    assert "$schema" not in spec
    assert "http" not in found[0]
    assert page.count("</script>") == 2
    assert "window.vegaEmbed" in page


@pytest.mark.parametrize("made", [charts.lines, charts.forest])
def test_a_number_nobody_knows_is_left_out_of_a_chart(made: Any) -> None:
    spec = charts.spec_of(made("title", "subtitle", [PANEL, PANEL], LOOKS))
    assert "NaN" not in json.dumps(spec)
    assert charts.svg(spec).startswith("<svg")


def test_a_bar_is_made_of_its_parts() -> None:
    rows = [{"label": "B1", "series": "P1", "mean": 0.5, "place": "P1"}]
    panel = Panel(title="", rows=rows, x=Axis(title=""), y=Axis(title=""))
    spec = charts.spec_of(charts.stacks("title", "", [panel], [Series(name="P1", color="#000000")]))
    assert "B1" in charts.svg(spec)


def test_schedulers_are_told_apart_by_colour_and_by_shape() -> None:
    assert len({each.color for each in SCHEDULERS.values()}) == len(SCHEDULERS)
    assert len({each.shape for each in SCHEDULERS.values()}) == len(SCHEDULERS)


def test_without_the_chart_packages_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(OptionError, match=r"vl_convert.*dpbalance\[plots\]"):
        report.chart_language()

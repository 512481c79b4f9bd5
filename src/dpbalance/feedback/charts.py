"""What does it look like? Four kinds of chart in one language, one colour for each scheduler wherever it appears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from dpbalance.errors import DPBalanceError

INK, FAINT, GRID = "#1b1f24", "#57606a", "#e4e7eb"
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"

Rows = Sequence[Mapping[str, Any]]
Chart = Any
"""Of Altair; its classes are generated, and their types say less than their schema checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How one thing looks in every chart: the colours are told apart by colour-blind eyes, the shapes in grey print."""

    name: str
    color: str
    shape: str = "circle"
    dash: tuple[int, ...] = (1, 0)


SCHEDULERS = {
    "dpbalance": Series(name="DPBalance", color="#0072b2"),
    "dpf": Series(name="DPF", color="#e69f00", shape="square"),
    "dpk": Series(name="DPK", color="#009e73", shape="triangle-up"),
    "fcfs": Series(name="FCFS", color="#a3457e", shape="diamond"),
    "round-robin": Series(name="Round robin", color="#56b4e9", shape="cross"),
    "optimal": Series(name="Optimal", color="#5c5c5c", shape="triangle-down"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis says.

    `zero` draws it from zero, `top` up to there, `log` counts in factors, `rule` marks a value to compare with.
    """

    title: str
    zero: bool = False
    top: float | None = None
    log: bool = False
    rule: float | None = None
    values: tuple[float, ...] | None = None
    span: tuple[float, float] | None = None
    """A range to compare with, shaded."""
    percent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture in a picture: rows of x (or label), mean, low, high and series."""

    title: str
    rows: Rows
    y: Axis
    x: Axis


def lines(title: str, subtitle: str, panels: Sequence[Panel], series: Sequence[Series], columns: int = 3) -> Chart:
    """Means as lines with their 95% bands, panel beside panel."""
    width = {1: 640, 2: 380}.get(columns, 250)
    return _together(title, subtitle, [_line_panel(each, series, width) for each in panels], columns)


def forest(title: str, subtitle: str, panels: Sequence[Panel], series: Sequence[Series]) -> Chart:
    """Means as points with their 95% intervals, a line of text for each; panels share the labels."""
    width = {1: 520, 2: 320}.get(len(panels), 230)
    drawn = [_forest_panel(each, series, width, labels=number == 0) for number, each in enumerate(panels)]
    return _together(title, subtitle, drawn, len(panels))


def stacks(title: str, subtitle: str, panels: Sequence[Panel], series: Sequence[Series]) -> Chart:
    """Bars of parts, for rows of label, series and mean."""
    names, colors = [each.name for each in series], [each.color for each in series]
    drawn = []
    for panel in panels:
        base = alt.Chart(_data(panel.rows)).encode(
            x=alt.X("label:N", title=panel.x.title, sort=None, axis=alt.Axis(labelAngle=0)),
            y=alt.Y("mean:Q", title=panel.y.title, stack="zero", scale=alt.Scale(domain=[0, 1])),
            order=alt.Order("place:O"),
        )
        bars = base.mark_bar(size=44, stroke="white", strokeWidth=1.5).encode(
            color=alt.Color("series:N", scale=alt.Scale(domain=names, range=colors), legend=_legend()),
            tooltip=["label:N", "series:N", alt.Tooltip("mean:Q", format=".3~f")],
        )
        drawn.append(bars.properties(width=200, height=220, title=_heading(panel.title)))
    return _together(title, subtitle, drawn, len(drawn))


def spec_of(chart: Chart) -> dict[str, Any]:
    """The chart as Vega-Lite, without the address of its schema: nothing in it points outside."""
    made: dict[str, Any] = chart.to_dict()
    made.pop("$schema", None)
    return made


def png(spec: Mapping[str, Any], scale: float = 2.0) -> bytes:
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(dict(spec), vl_version=_version(), scale=scale))


def svg(spec: Mapping[str, Any]) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(dict(spec), vl_version=_version()))


def javascript() -> str:
    """The program that draws charts in a browser, out of the installed wheel."""
    import vl_convert

    bundle = str(vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;", vl_version=_version()))
    if "</script" in bundle.lower():
        raise DPBalanceError("the chart program cannot stand inside a page")
    return bundle


def _version() -> str:
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


def _line_panel(panel: Panel, series: Sequence[Series], width: int) -> Any:
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=panel.x.title, scale=_scale(panel.x), axis=_axis(panel.x, grid=False)),
        **_looks(series, "strokeDash"),
    )
    y = alt.Y("mean:Q", title=panel.y.title, scale=_scale(panel.y), axis=_axis(panel.y, minExtent=30))
    band = base.mark_area(opacity=0.12, strokeWidth=0, clip=True).encode(
        y=alt.Y("low:Q", title=panel.y.title, scale=_scale(panel.y), axis=_axis(panel.y, minExtent=30)),
        y2="high:Q",
        strokeDash=alt.value([1, 0]),
    )
    line = base.mark_line(strokeWidth=2.2).encode(y=y)
    dots = base.mark_point(filled=True, size=34, opacity=1).encode(
        y=y, shape=_shape(series), strokeDash=alt.value([1, 0]), tooltip=_tooltip("x:Q", panel.x.title, panel.y.title)
    )
    marks: list[Any] = [band, line]
    if len({row["x"] for row in panel.rows}) <= 25:
        marks.append(dots)
    if panel.y.rule is not None:
        marks.insert(0, _rule("y", panel.y.rule))
    return alt.layer(*marks, data=_data(panel.rows)).properties(width=width, height=210, title=_heading(panel.title))


def _forest_panel(panel: Panel, series: Sequence[Series], width: int, *, labels: bool) -> Any:
    order = list(dict.fromkeys(row["label"] for row in panel.rows))
    names = [each.name for each in series]
    base = alt.Chart().encode(
        y=alt.Y(
            "label:N",
            title=panel.y.title if labels else None,
            sort=order,
            axis=alt.Axis(labels=labels, labelLimit=260, ticks=False, domain=False, grid=False, labelPadding=8),
            scale=alt.Scale(paddingInner=0.25, paddingOuter=0.12),
        ),
        **_looks(series),
    )
    crowded = len(panel.rows) > len(order)
    if crowded:
        base = base.encode(yOffset=alt.YOffset("series:N", sort=names, scale=alt.Scale(domain=names)))
    reach = base.mark_rule(strokeWidth=2, clip=True).encode(
        x=alt.X("low:Q", title=panel.x.title, scale=_scale(panel.x), axis=_axis(panel.x)), x2="high:Q"
    )
    dots = base.mark_point(filled=True, size=62, opacity=1, clip=True).encode(
        x=alt.X("mean:Q", scale=_scale(panel.x), axis=_axis(panel.x)),
        shape=_shape(series),
        tooltip=_tooltip("label:N", "", panel.x.title),
    )
    marks: list[Any] = [reach, dots]
    if panel.x.rule is not None:
        marks.insert(0, _rule("x", panel.x.rule))
    if panel.x.span is not None:
        low, high = panel.x.span
        shade = alt.Chart(_data([{}])).mark_rect(color="#dfe4e9", opacity=0.9)
        marks.insert(0, shade.encode(x=alt.datum(low), x2=alt.datum(high)))
    height = len(order) * (max(22, 12 * len(names) + 6) if crowded else 26)
    return alt.layer(*marks, data=_data(panel.rows)).properties(width=width, height=height, title=_heading(panel.title))


def _looks(series: Sequence[Series], *also: str) -> dict[str, Any]:
    names = [each.name for each in series]
    looks: dict[str, Any] = {
        "color": alt.Color(
            "series:N", scale=alt.Scale(domain=names, range=[each.color for each in series]), legend=_legend()
        )
    }
    if "strokeDash" in also:
        dashes = [list(each.dash) for each in series]
        looks["strokeDash"] = alt.StrokeDash("series:N", scale=alt.Scale(domain=names, range=dashes), legend=_legend())
    return looks


def _shape(series: Sequence[Series]) -> alt.Shape:
    scale = alt.Scale(domain=[each.name for each in series], range=[each.shape for each in series])
    return alt.Shape("series:N", scale=scale, legend=_legend())


def _legend() -> alt.Legend:
    return alt.Legend(title=None, orient="top", symbolSize=110, symbolOpacity=1, labelLimit=320, columnPadding=18)


def _scale(axis: Axis) -> Any:
    if axis.log:
        return alt.Scale(type="log", nice=False, padding=10)
    limits: dict[str, Any] = {"domainMin": 0, "domainMax": axis.top} if axis.top is not None else {}
    return alt.Scale(zero=axis.zero, nice=5, **limits)


def _axis(axis: Axis, *, grid: bool = True, **more: Any) -> Any:
    if axis.values is None:
        more |= {"tickCount": 5, "labelSeparation": 6}
    else:
        more |= {"values": list(axis.values), "labelOverlap": False}  # a count of ticks would leave some of them out
    if axis.log:
        more["labelExpr"] = "format(datum.value, '~g')"  # else a log axis leaves out labels of its own choice
    if axis.percent:
        more["format"] = "~%"
    return alt.Axis(grid=grid, labelFlush=False, **more)


def _rule(channel: str, value: float) -> Any:
    where = {channel: alt.datum(value)}
    return alt.Chart(_data([{}])).mark_rule(color=FAINT, strokeDash=[4, 3], strokeWidth=1.2).encode(**where)


def _tooltip(key: str, key_title: str, value_title: str) -> list[alt.Tooltip]:
    shown = [alt.Tooltip("series:N", title="scheduler"), alt.Tooltip(key, title=key_title or "of")]
    return shown + [
        alt.Tooltip(f"{name}:Q", title=title, format=".4~g")
        for name, title in (("mean", value_title), ("low", "95% from"), ("high", "to"))
    ]


def _data(rows: Rows) -> dict[str, Any]:
    """Numbers as they are, and nothing where there is no number: JSON knows no NaN."""
    kept = [{key: it for key, it in row.items() if not (isinstance(it, float) and it != it)} for row in rows]
    return {"values": kept}


def _heading(text: str) -> alt.TitleParams:
    return alt.TitleParams(text=text, fontSize=13, fontWeight=600, color=INK, anchor="start", frame="group", offset=8)


def _together(title: str, subtitle: str, drawn: Sequence[Any], columns: int) -> Chart:
    heading = alt.TitleParams(
        text=title.split("\n"),
        subtitle=subtitle.split("\n"),
        fontSize=17,
        fontWeight=700,
        color=INK,
        subtitleFontSize=12.5,
        subtitleColor=FAINT,
        subtitlePadding=6,
        anchor="start",
        offset=16,
    )
    rows = [alt.hconcat(*drawn[at : at + columns], spacing=34) for at in range(0, len(drawn), columns)]
    whole = alt.vconcat(*rows, spacing=30).resolve_scale(x="independent", y="independent")
    return (
        whole.properties(title=heading, padding=18, background="white")
        .configure(font=FONT)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=11.5,
            titleFontSize=12,
            titleFontWeight="normal",
            labelColor=FAINT,
            titleColor=INK,
            gridColor=GRID,
            domainColor="#b6bcc3",
            tickColor="#b6bcc3",
            titlePadding=8,
        )
        .configure_legend(labelFontSize=12.5, labelColor=INK)
    )

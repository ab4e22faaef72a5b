"""Writes ``grafana/stragd.json``, the Grafana dashboard: ``python scripts/dashboard.py``.

The panels are in ``panels.py``. A test runs every query against a Prometheus that has scraped a
real stragd, and compares the file with what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import (
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from panels import CAUSES, ROWS, Column, Panel, Query

FILE = Path(__file__).resolve().parent.parent / "grafana" / "stragd.json"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_KINDS: dict[str, Callable[[], Any]] = {
    "stat": stat.Panel,
    "table": table.Panel,
    "heatmap": heatmap.Panel,
    "state": statetimeline.Panel,
    "lines": timeseries.Panel,
    "stack": timeseries.Panel,
}

LEGEND = (
    common_builders.VizLegendOptions()
    .show_legend(True)
    .display_mode(common.LegendDisplayMode.LIST)
    .placement(common.LegendPlacement.BOTTOM)
)
UNSHOWN = ("Time", "__name__", "instance")
WORKS = model.ValueMap(
    {
        "0": model.ValueMappingResult("does not work", "red", index=0),
        "1": model.ValueMappingResult("works", "green", index=1),
    }
)


class _Findings(model.AnnotationQuery):
    """Prometheus' own keys of an annotation, which the SDK's model does not have."""

    def to_json(self) -> dict[str, object]:
        return {
            **super().to_json(),
            "titleFormat": "{{kind}}: rank {{rank}} of {{job}}",
            "textFormat": "{{cause}} ({{where}})",
            "tagKeys": "job,kind,where",
            "step": "30s",
        }


class _FindingsBuilder(dashboard.AnnotationQuery):
    def build(self) -> model.AnnotationQuery:
        return _Findings(
            name="Findings", datasource=SOURCE, enable=True, icon_color="red", expr=CAUSES
        )


def variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A template variable; "All" is its default."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NUMERICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(text="All", value="$__all"))
    )


def target(panel: Panel, query: Query, ref: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref)
    if panel.kind == "table":
        return made.format(PromQueryFormat.TABLE).instant()
    return made.instant() if panel.kind == "stat" else made.range()


def coloured(made: Any, steps: Sequence[tuple[float, str]], base: str) -> Any:
    """``base`` below the first of ``steps``."""
    all_steps = [model.Threshold(None, base), *(model.Threshold(*step) for step in steps)]
    made.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    return made.thresholds(
        dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(all_steps)
    )


def lines(made: Any, stacked: bool) -> None:
    # Fills of many ranks would add up to a block.
    made.fill_opacity(60 if stacked else 0).axis_soft_min(0).legend(LEGEND)
    made.tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    if stacked:
        made.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    dashes = {"fill": "dash", "dash": [8, 6]}
    grey = {"mode": "fixed", "fixedColor": "text"}
    made.override_by_regexp(
        "/^(median|limit) /",
        [
            model.DynamicConfigValue("custom.lineStyle", dashes),
            model.DynamicConfigValue("color", grey),
        ],
    )


def heat(made: Any, unit: str) -> None:
    made.calculate(False).cell_gap(0).max_data_points(200).show_tooltip()
    made.cell_values(heatmap.CellValues().unit(unit))
    # The SDK's default hides what is not above 0: every rank that is not slow.
    made.filter_values(heatmap.FilterValueRange().le(-1))
    made.rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.AUTO))
    # Grafana turns the diverging schemes round by itself: green is low, red is high.
    scheme = heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME)
    # Fixed ends: a healthy job must look even, not like its own noise at full contrast.
    made.color(scheme.scheme("RdYlGn").reverse(False).min(-0.2).max(0.2).steps(64))


def columns(made: Any, shown: Sequence[Column]) -> None:
    """A table of just these columns; long text takes several lines where Grafana can do that."""
    titles = [column.title or column.label for column in shown]
    labels = [column.label for column in shown]
    options = {
        "excludeByName": dict.fromkeys(UNSHOWN, True),
        "indexByName": {label: place for place, label in enumerate(labels)},
        "renameByName": {column.label: column.title for column in shown if column.title},
    }
    made.with_transformation(model.DataTransformerConfig(id_val="organize", options=options))
    made.sort_by([common_builders.TableSortByFieldState().display_name(titles[0]).desc(True)])
    for title, column in zip(titles, shown, strict=True):
        if column.width:
            wide = model.DynamicConfigValue("custom.width", column.width)
            made.override_by_name(title, [wide])
        elif column.label == "evidence":
            wrapped = {"type": "auto", "wrapText": True}
            made.override_by_name(title, [model.DynamicConfigValue("custom.cellOptions", wrapped)])


def drawn(panel: Panel) -> Any:
    """The SDK's builder of a panel."""
    made = (
        _KINDS[panel.kind]()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.span)
        .height(4 if panel.kind == "stat" else 8)
        .targets([target(panel, query, "ABCDEF"[i]) for i, query in enumerate(panel.queries)])
    )
    match panel.kind:
        case "stat":
            reduce = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
            made.reduce_options(reduce).graph_mode(common.BigValueGraphMode.NONE)
            coloured(made, panel.alarm, "green" if panel.alarm else "text")
        case "lines" | "stack":
            lines(made, stacked=panel.kind == "stack")
        case "state":
            made.show_value(common.VisibilityMode.NEVER).row_height(0.9).fill_opacity(70)
            made.legend(LEGEND)
            # Without colours of its own Grafana would run from green to red, and 1 would be red.
            coloured(made, ((1, "green"),), "red").mappings([WORKS])
        case "heatmap":
            heat(made, panel.unit)
        case "table":
            columns(made, panel.columns)
    return made


def build() -> dashboard.Dashboard:
    """The whole dashboard."""
    made = (
        dashboard.Dashboard("stragd: who is everybody waiting for?")
        .uid("stragd")
        .tags(["stragd", "gpu", "training"])
        .description("Slow ranks of distributed training jobs, what they cost, and why.")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .with_variable(variable("job", "Job", "label_values(stragd_job_info, job)"))
        .with_variable(
            variable("rank", "Rank", 'label_values(stragd_rank_info{job=~"$job"}, rank)')
        )
        .with_variable(variable("node", "Node", "label_values(stragd_build_info, instance)"))
        .annotation(_FindingsBuilder())
    )
    number = 0
    for title, panels in ROWS.items():
        number += 1
        made.with_row(dashboard.Row(title).id(number))
        for panel in panels:
            number += 1
            made.with_panel(drawn(panel).id(number))
    return made


def text() -> str:
    """The file's content."""
    return JSONEncoder(sort_keys=True, indent=2).encode(build().build()) + "\n"


def main(arguments: Sequence[str]) -> int:
    if arguments:
        print("usage: python scripts/dashboard.py", file=sys.stderr)
        return 2
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

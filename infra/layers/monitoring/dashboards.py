"""The three dashboards: the fleet, a run, and pipeline with cost."""

from infra.core.layer import Layer
from infra.core.watched import BATCH, HOST, LogMetric, mean, summed
from infra.layers.monitoring.alerts import spend
from infra.layers.monitoring.metrics import OF as METRIC
from infra.layers.monitoring.metrics import filter_of, of_hosts
from infra.layers.monitoring.prices import dollars_per_chip_hour
from infra.layers.monitoring.widgets import Chart, Dashboard, Incidents, Line, Logs, Score, Widget, WidgetRow
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings
from infra.slices.names import LOG

WINDOW = "10m"
NODE, ZONE = ("node",), ("zone",)
_EACH = "${labels.node}"


def dashboards(settings: Settings) -> dict[str, Dashboard]:
    """All of them, by name."""
    return {"fleet": _fleet(settings), "run": _run(settings), "pipeline": _pipeline(settings)}


def _titled(settings: Settings, what: str) -> str:
    return f"TPU {settings.environment}: {what}"


def _counted(settings: Settings, title: str, metric: LogMetric) -> Chart:
    by = tuple(metric.labels)[:1]
    label = f"${{labels.{by[0]}}}" if by else title
    return Chart(title, (Line(summed(metric, settings, WINDOW, by), label),), plot="STACKED_BAR")


def _measured(settings: Settings, title: str, metric: str) -> Chart:
    measured = METRIC[metric]
    return Chart(title, (Line(mean(measured, settings, WINDOW, NODE), _EACH),), measured.unit)


def _chips(settings: Settings, by: tuple[str, ...]) -> str:
    return f"sum{f' by ({by[0]})' if by else ''} ({mean(METRIC['chips'], settings, WINDOW, (*NODE, *by))})"


def _fleet(settings: Settings) -> Dashboard:
    running = f"count({summed(METRIC['running'], settings, WINDOW, NODE)} > 0)"
    up = summed(METRIC["chips"], settings, WINDOW, NODE, "_count")
    failed = filter_of(METRIC["boot-failed"], settings)
    return Dashboard(
        _titled(settings, "fleet"),
        (
            WidgetRow(8, (
                Score("Chips that are up", _chips(settings, ()), "{chip}"),
                Score("Nodes that are up", f"count({up} > 0)"),
                Score("Nodes with a running job", running),
                Incidents("Open incidents"),
            )),
            WidgetRow(16, (
                Chart("Chips by zone", (Line(_chips(settings, ZONE), "${labels.zone}"),), "{chip}",
                      "STACKED_AREA"),
                _measured(settings, "Duty cycle (TPU only)", "duty-cycle"),
            )),
            WidgetRow(16, (
                _counted(settings, "Nodes taken back", METRIC["terminations"]),
                _counted(settings, "Creations refused", METRIC["creations-refused"]),
                _counted(settings, "Boots that failed", METRIC["boot-failed"]),
            )),
            WidgetRow(16, (
                _counted(settings, "Starts of jobs that failed", METRIC["job-failed"]),
                _measured(settings, "Memory of the chips (TPU only)", "memory"),
            )),
            WidgetRow(16, (Logs("Boots that failed", failed),)),
        ),
    )  # fmt: skip


def _run(settings: Settings) -> Dashboard:
    log = f'logName="projects/{settings.project}/logs/{LOG}"'
    events = f'resource.type="{HOST}" AND {log} AND jsonPayload.event:* AND {of_hosts(settings)}'
    curves = f"curves: tpu runs show {settings.environment} RUN"
    return Dashboard(
        _titled(settings, "run"),
        (
            WidgetRow(16, (
                _measured(settings, "Loss", "loss"),
                _measured(settings, "Step time", "step-time"),
            )),
            WidgetRow(16, (
                _measured(settings, "Goodput", "goodput"),
                _measured(settings, "Waiting for data", "data-stall"),
                _measured(settings, "Duty cycle (TPU only)", "duty-cycle"),
            )),
            WidgetRow(16, (
                _measured(settings, "Since the last step", "step-age"),
                _measured(settings, "Since the last checkpoint", "checkpoint-age"),
                _counted(settings, "Checkpoints begun", METRIC["checkpoints"]),
            )),
            WidgetRow(16, (Logs(f"Events of runs; {curves}", events),)),
        ),
    )  # fmt: skip


def _declared(settings: Settings, layer: Layer) -> WidgetRow:
    """Return a row with what a layer has counted."""
    metrics = layer.hooks.metrics
    return WidgetRow(
        16, tuple(_counted(settings, f"{item.about[0].upper()}{item.about[1:]}", item) for item in metrics)
    )


def _pipeline(settings: Settings) -> Dashboard:
    region = settings[StorageSettings].location
    batches = f'resource.type="{BATCH}" AND resource.labels.location="{region}" AND severity>=WARNING'
    priced: tuple[Widget, ...] = ()
    if dollars_per_chip_hour(settings):
        priced = (
            Score("Dollars an hour, by the catalog", spend(settings, WINDOW), "USD/h"),
            Chart("Dollars an hour", (Line(spend(settings, WINDOW), "all nodes"),), "USD/h", "STACKED_AREA"),
        )
    rows = [
        *([WidgetRow(16, priced)] if priced else []),
        *(_declared(settings, layer) for layer in settings.layers_on if layer.hooks.metrics),
        WidgetRow(16, (
            _counted(settings, "Access to buckets changed", METRIC["bucket-access-changed"]),
            _counted(settings, "Buckets made public", METRIC["bucket-public"]),
        )),
        WidgetRow(16, (Logs("Spark batches", batches),)),
    ]  # fmt: skip
    return Dashboard(_titled(settings, "pipeline and cost"), tuple(rows))

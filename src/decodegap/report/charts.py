"""Charts of records: the length curve, and the account as stacked bars; one page and PNGs.

Only here is altair imported, and only when something is drawn. Nothing is fetched when a page is
opened: the charts' scripts are inside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from decodegap.errors import DecodegapError, OutputFolder, Unavailable
from decodegap.explain.compare import Comparison
from decodegap.explain.curve import curves_of, pooled
from decodegap.explain.findings import Cell
from decodegap.explain.result import Result
from decodegap.explain.runs import cells_of
from decodegap.grouping import grouped
from decodegap.report.account_chart import account_chart, started_at
from decodegap.report.curve import alike
from decodegap.report.curve_chart import curve_chart


def write_charts(runs: Sequence[Result | Comparison], folder: Path) -> list[Path]:
    """Draw all curves and accounts: `charts.html` with all of them, and a PNG each.

    Raises:
        DecodegapError: no run has a curve or an account.
        OutputFolder: `folder` cannot be written.
        Unavailable: altair or vl-convert is not installed.
    """
    alt = _altair()
    charts = dict(_named_charts(alt, cells_of(runs)))
    if not charts:
        raise DecodegapError(
            "nothing to draw: no run has a step split by cause or two contexts; "
            "`decodegap measure --context 256,1024,4096` makes both"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "charts.html"]
        paths[0].write_text(_page(alt, charts.values()), encoding="utf-8")
        for name, chart in charts.items():
            paths.append(folder / f"{name}.png")
            chart.save(str(paths[-1]), scale_factor=2)
    except OSError as error:
        reason = error.strerror or error
        raise OutputFolder(
            f"cannot write charts to {folder} ({reason}); give another with --charts"
        ) from None
    return paths


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401 (altair makes PNGs and offline pages with it)
    except ImportError:
        raise Unavailable(
            "charts need altair and vl-convert: pip install 'decodegap[report]'"
        ) from None
    return altair


def _named_charts(alt: Any, cells: Sequence[Cell]) -> Iterator[tuple[str, Any]]:
    """Each chart under the name of its file."""
    runtimes = list(dict.fromkeys(cell.summary.key.runtime for cell in cells))
    taken: dict[str, int] = {}
    for kind, chart, model, when in (*_curve_charts(alt, cells, runtimes), *_accounts(alt, cells)):
        name = f"{kind}-{_slug(model)}-{when:%Y%m%dT%H%M}"
        taken[name] = taken.get(name, 0) + 1
        yield (name if taken[name] == 1 else f"{name}-{taken[name]}"), chart


def _slug(text: str) -> str:
    return "".join(char if char.isalnum() or char in ".-" else "_" for char in text)


_Drawn = tuple[str, Any, str, datetime]


def _curve_charts(alt: Any, cells: Sequence[Cell], runtimes: Sequence[str]) -> Iterator[_Drawn]:
    curves = curves_of(pooled(cell.summary for cell in cells))
    for group in alike(curves):
        when = min(curve.started_at for curve in group)
        yield "curve", curve_chart(alt, group, runtimes), group[0].model, when


def _accounts(alt: Any, cells: Sequence[Cell]) -> Iterator[_Drawn]:
    drawn = (cell for cell in cells if cell.account is not None)
    for group in grouped(drawn, _run_and_model).values():
        yield "account", account_chart(alt, group), group[0].summary.key.model, started_at(group)


def _run_and_model(cell: Cell) -> tuple[str, ...]:
    key = cell.summary.key
    return cell.summary.records[0].trial.run, key.model, key.format, key.weights


def _page(alt: Any, charts: Iterable[Any]) -> str:
    """All charts below each other, with the scripts that draw them."""
    stacked = alt.vconcat(*charts, spacing=40).resolve_scale(color="independent", x="independent")
    page: str = stacked.to_html(inline=True, embed_options={"actions": False})
    return page.replace("<head>", "<head>\n  <title>decodegap</title>", 1)

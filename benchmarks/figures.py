"""Write recorded runs into the documents: tables, and a chart.

    python -m benchmarks decode --json > decode.json
    python -m benchmarks.figures decode.json       # record this run, then write the documents
    python -m benchmarks.figures                   # only write the documents

`benchmarks/results.json` holds the last recorded run of each benchmark. From it come the tables in
docs/performance.md and README.md, between the comments `<!-- figures: NAME -->` and `<!-- end -->`,
and the chart docs/images/figures.svg.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.json"
CHART = ROOT / "docs" / "images" / "figures.svg"
PAGES = (ROOT / "docs" / "performance.md", ROOT / "README.md")
_MARKED = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Highlight:
    """A figure for the README and the chart: our rate, and a rate to compare it with."""

    what: str
    benchmark: str
    case: str
    ours: str
    beside: str
    beside_name: str
    unit: str
    scale: float = 1
    """The unit is the rate times this."""
    count: int = 0
    """How many things one round does, where the benchmark counts neither records nor bytes."""

    def rate(self, run: dict[str, Any], who: str) -> float:
        (timing,) = [t for t in run["timings"] if (t["case"], t["who"]) == (self.case, who)]
        amount = self.count or timing["records" if "records" in self.unit else "size_bytes"]
        return float(amount / timing["seconds"] * self.scale)


HIGHLIGHTS = (
    Highlight(
        "Decode 100-byte records to Arrow, CRC checked",
        "decode",
        "100 B values, none",
        "stratalog",
        "aiokafka",
        "aiokafka (compiled)",
        "M records/s",
        1e-6,
    ),
    Highlight(
        "Find an offset in a 1 GiB segment",
        "lookup",
        "5000 lookups, 1023 MiB segment",
        "by offset",
        "one pread of 4 KiB",
        "one 4 KiB `pread`",
        "thousand/s",
        1e-3,
        count=5000,
    ),
    Highlight(
        "Append 16 KiB batches as leader, 16 per write",
        "append",
        "append, 100 B values, none",
        "PartitionLog, groups of 16",
        "os.write alone",
        "`os.write` of each batch",
        "MB/s",
        1e-6,
    ),
    Highlight(
        "Compact 1.1 GB, 9 M records, 1 M keys",
        "compact",
        "compact, 100 B values, none",
        "cleaner",
        "decode once",
        "decoding it once",
        "MB/s",
        1e-6,
    ),
    Highlight(
        "Encode 100-byte records from Arrow",
        "encode",
        "encode, 100 B values, none",
        "stratalog",
        "aiokafka",
        "aiokafka's builder",
        "M records/s",
        1e-6,
    ),
)


# -- recorded runs


def record(results: dict[str, Any], run: dict[str, Any], date: str) -> dict[str, Any]:
    """The results with the benchmarks of this run in place of older ones."""
    rows = [*run["timings"], *run["requirements"]]  # some benchmarks measure memory, not time
    names = dict.fromkeys(row["benchmark"] for row in rows)
    added = {
        name: {
            "date": date,
            "machine": run["machine"],
            "python": run["python"],
            "timings": _of_benchmark(run["timings"], name),
            "requirements": _of_benchmark(run["requirements"], name),
        }
        for name in names
    }
    return dict(sorted((results | added).items()))


def _of_benchmark(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    chosen = [row for row in rows if row["benchmark"] == name]
    return [{key: row[key] for key in row if key != "benchmark"} for row in chosen]


# -- tables


def render(page: str, results: dict[str, Any]) -> str:
    """The page with its marked tables written again."""

    def table(marked: re.Match[str]) -> str:
        name = marked[2]
        if name == "highlights":
            text = _highlights(results)
        else:
            text = _tables(results[name]) if name in results else ""
        return f"{marked[1]}{text}{marked[3]}"

    return _MARKED.sub(table, page)


def _highlights(results: dict[str, Any]) -> str:
    rows = []
    for item in HIGHLIGHTS:
        run = results[item.benchmark]
        ours, beside = item.rate(run, item.ours), item.rate(run, item.beside)
        rows.append(
            f"| {item.what} | {_number(ours)} {item.unit} "
            f"| {item.beside_name}: {_number(beside)} {item.unit} | {ours / beside:.2g}x |"
        )
    return "\n".join(
        ["| what | Stratalog | compared with | ratio |", "|---|---|---|---|", *rows, ""]
    )


def _tables(run: dict[str, Any]) -> str:
    lines, previous = [], ""
    if run["timings"]:
        lines = ["| case | who | time | records/s | MB/s |", "|---|---|---:|---:|---:|"]
    for timing in run["timings"]:
        case = timing["case"] if timing["case"] != previous else ""
        lines.append(f"| {case} | {timing['who']} | {' | '.join(_cells(timing))} |")
        previous = timing["case"]
    if run["timings"] and run["requirements"]:
        lines.append("")
    if run["requirements"]:
        lines += ["| promise | measured | bound | |", "|---|---:|---:|---|"]
        lines += [_promise(requirement) for requirement in run["requirements"]]
    return "\n".join([*lines, "", f"{run['date']}, {run['machine']}, Python {run['python']}.", ""])


def _cells(timing: dict[str, Any]) -> tuple[str, str, str]:
    seconds, records, size_bytes = (timing[key] for key in ("seconds", "records", "size_bytes"))
    return (
        f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:,.1f} ms",
        f"{_number(records / seconds / 1e6)} M" if records else "",
        f"{size_bytes / seconds / 1e6:,.0f}" if size_bytes else "",
    )


def _promise(requirement: dict[str, Any]) -> str:
    unit, at_least = requirement["unit"], requirement["at_least"]
    bound = f">= {at_least:g}" if at_least is not None else f"<= {requirement['at_most']:g}"
    verdict = "kept" if requirement["is_met"] else "missed"
    aim = requirement["aim"]
    if aim is not None:
        worse = requirement["value"] < aim if at_least is not None else requirement["value"] > aim
        verdict += f"; aim {aim:g}{unit}: {'missed' if worse else 'kept'}"
    return (
        f"| {requirement['what']} | {requirement['value']:.2f}{unit} | {bound}{unit} | {verdict} |"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


# -- chart

_STYLE = """<style>
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, "DejaVu Sans", sans-serif; }
text { font-size: 13px; fill: #1f2328; }
.name { font-weight: 600; }
.note { font-size: 12px; fill: #59636e; }
.ours { fill: #0969da; }
.beside { fill: #afb8c1; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.note { fill: #9198a1; }
.ours { fill: #58a6ff; }
.beside { fill: #6e7681; }
}
</style>"""
_BAR_WIDTH = 460
_ROW_HEIGHT = 74


def chart(results: dict[str, Any]) -> str:
    """Two bars for each highlight, scaled to the longer one."""
    height = _ROW_HEIGHT * len(HIGHLIGHTS) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" width="760" '
        f'height="{height}" role="img">',
        "<title>Rates of Stratalog, each with a rate to compare it with</title>",
        _STYLE,
    ]
    for row, item in enumerate(HIGHLIGHTS):
        run = results[item.benchmark]
        rates = {
            "ours": ("Stratalog", item.rate(run, item.ours)),
            "beside": (item.beside_name.replace("`", ""), item.rate(run, item.beside)),
        }
        longest = max(rate for _, rate in rates.values())
        top = _ROW_HEIGHT * row + 20
        lines.append(f'<text class="name" x="10" y="{top}">{item.what}</text>')
        for at, (kind, (name, rate)) in enumerate(rates.items()):
            y, width = top + 8 + 22 * at, max(2, round(_BAR_WIDTH * rate / longest))
            lines += [
                f'<rect class="{kind}" x="10" y="{y}" width="{width}" height="18" rx="2"/>',
                f'<text class="note" x="{width + 18}" y="{y + 13}">'
                f"{name}: {_number(rate)} {item.unit}</text>",
            ]
    legend = "Longer is faster. Grey: another library, or the least work that the task needs."
    lines.append(f'<text class="note" x="10" y="{height - 8}">{legend}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Record the runs given, and write the documents."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    date = datetime.now(UTC).date().isoformat()
    for path in sys.argv[1:]:
        results = record(results, json.loads(Path(path).read_text()), date)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    CHART.write_text(chart(results))
    for page in PAGES:
        page.write_text(render(page.read_text(), results))


if __name__ == "__main__":
    main()

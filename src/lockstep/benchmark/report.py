"""The report of a benchmark from its results.json: one HTML file, a PDF of A4 pages, and the chart alone."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_pdf import PdfPages

from lockstep.benchmark import charts, paper, results
from lockstep.benchmark.results import COLUMNS, Record, printable
from lockstep.callbacks.plots import style
from lockstep.runs.files import atomic_file, write_atomically

DPI = 160
FORMULA = (
    "Weak scaling: T(W) = t_compute + t_input + t_sync + t_comm(W), T(1) = t_compute + t_input, efficiency T(1)/T(W).",
    "t_comm(W) = (2 A + G) R latency + 2 (W - 1) / W · bytes / bandwidth, with A all-reduces (gradient buckets, batch "
    "norms backward) and G all-gathers (batch norms forward) in a step.",
    "R, the rounds of a message, is ⌈log2 W⌉: recursive halving and doubling (Thakur, Rabenseifner and Gropp 2005), as "
    "MPI does it, or the trees of NCCL. gloo, the library for CPUs, sends rings, R = W - 1: by it, many workers are "
    "slower than predicted.",
    "latency = t(one number) / (2 R) with the R of the library measured; bandwidth = 2 (W - 1) / W · bytes / "
    "(t(gradients) - t(one number)).",
    "t_sync = measured communication - t_comm at the measured W, not below 0: merging of batch statistics, waiting.",
    "Neglected: overlap of communication with computing, the bytes of batch norms, and slower links between machines.",
)
METHOD = (
    "t_compute is the median step with gradient and batch-norm synchronization off, t_input the median wait for an "
    "augmented batch, communication the median difference of a full step and the step without synchronization "
    "after it, each on the slowest rank. MFU = counted FLOPs per image × images/s / the fastest matrix product "
    "measured on the same workers in the precision of the training. s/epoch is the training part of an epoch, without "
    "validation. Memory is the most a worker held: of the GPU, or of its process on a CPU."
)
CSS = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;color:#202124;background:#fff;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2rem}p{max-width:48rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.85rem;line-height:1.35}
th,td{padding:.3rem .45rem;text-align:right;border-bottom:1px solid #dadce0;white-space:nowrap;vertical-align:top}
th{vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal;overflow-wrap:anywhere;min-width:5.5rem}
td small{color:#5f6368;display:block}.facts td{text-align:left;white-space:normal;overflow-wrap:anywhere}
svg{max-width:100%;height:auto}.faint{color:#5f6368;font-size:.85rem}code{background:#f1f3f4;padding:.1rem .3rem}
@media (prefers-color-scheme:dark){body{color:#e8eaed;background:#202124}th,td{border-color:#5f6368}
.faint,td small{color:#9aa0a6}code{background:#3c4043}svg{background:#fff;border-radius:.4rem;padding:.5rem}}
"""


def write(path: Path, benchmark: dict[str, Any]) -> list[Path]:
    """Write the report of `benchmark` into the folder `path`. Returns its files."""
    with style():
        return _write(path, benchmark)


def _write(path: Path, benchmark: dict[str, Any]) -> list[Path]:
    records = benchmark["environments"]
    chart = charts.epoch_times(records, _title(benchmark))
    drawn = [c for c in (chart, charts.step_parts(records), charts.predicted(records)) if c is not None]
    files = [path / "report.html", path / "report.pdf"]
    write_atomically(files[0], html(benchmark, [charts.svg(drawing.figure()) for drawing in drawn]))
    with atomic_file(files[1]) as file, PdfPages(file, metadata={"CreationDate": None}) as pdf:
        for page in paper.pages(_blocks(benchmark, drawn)):
            pdf.savefig(page)
    if chart is not None:
        files += [path / "epoch_time.png", path / "epoch_time.svg"]
        with atomic_file(files[2]) as file:
            chart.figure().savefig(file, format="png", dpi=DPI)
        write_atomically(files[3], '<?xml version="1.0" encoding="utf-8"?>\n' + charts.svg(chart.figure()))
    return files


def _blocks(benchmark: dict[str, Any], drawn: Sequence[charts.Chart]) -> list[charts.Chart]:
    """The report from top to bottom, for paper."""
    records = benchmark["environments"]
    head, step_rows = details(records)
    blocks = [
        paper.paragraph("Do more workers pay?", size=17, is_bold=True),
        paper.paragraph(_title(benchmark), size=10),
    ]
    blocks += [paper.paragraph(text) for text in benchmark["verdict"]]
    blocks += [*drawn[:1], paper.table(COLUMNS, results.rows(records))]
    blocks += [paper.paragraph(note, size=8) for note in results.notes(records)]
    blocks += drawn[1:]
    if step_rows:
        blocks += [paper.heading("Steps"), paper.table(head, step_rows)]
    blocks += [paper.heading("Method"), paper.paragraph(METHOD), *(paper.paragraph(line, size=8) for line in FORMULA)]
    blocks += [
        paper.heading("Facts"),
        *(paper.paragraph(f"{name}: {value}", size=8) for name, value in facts(benchmark)),
    ]
    return blocks


def _title(benchmark: dict[str, Any]) -> str:
    first = next((r for r in benchmark["environments"] if "precision" in r), None)
    what = f"{benchmark['experiment']['model']} on {benchmark['experiment']['data']}"
    return printable(f"{what}, {first['precision']}" if first else what)


def facts(benchmark: dict[str, Any]) -> list[tuple[str, str]]:
    """Command, date, machine, software and budget of a benchmark, as (name, value)."""
    machine, kept = benchmark["environment"], benchmark["kept"]
    packages = machine.get("packages", {})
    rows = [
        ("command", benchmark["command"]),
        ("date", benchmark["date"]),
        ("machine", f"{machine.get('cpu')}, {machine.get('cpu_cores')} cores; GPUs: {_counted(machine.get('gpus'))}"),
        (
            "software",
            ", ".join(f"{name} {packages[name]}" for name in ("torch", "lightning", "lockstep") if name in packages),
        ),
        ("commit", str(machine.get("commit"))),
        ("budget", f"{benchmark['settings']['budget_s']:g} s of training in each environment"),
    ]
    if kept is not None:
        text = f"{kept['environment']}: validation accuracy {kept['val_accuracy']:.4f}"
        if kept.get("test_accuracy") is not None:
            text += f", test accuracy {kept['test_accuracy']:.4f}"
        rows.append(("best network", f"{text}; {kept['checkpoint']}; {kept['command']}"))
    return [(name, printable(value)) for name, value in rows]


def _counted(names: Sequence[str] | None) -> str:
    return ", ".join(f"{list(names).count(name)} x {name}" for name in dict.fromkeys(names)) if names else "none"


def details(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of what was measured of the steps, with its spread: a column for each environment."""
    shown = [r for r in records if "terms" in r]
    if not shown:
        return [], []
    columns = [_details(r) for r in shown]
    heads = ["median [lowest, highest]", *(printable(r["name"]) for r in shown)]
    names = dict.fromkeys(name for column in columns for name in column)
    return heads, [[name, *(column.get(name, "-") for column in columns)] for name in names]


def _details(r: Record) -> dict[str, str]:
    t, bandwidth, latency = r["terms"], r["bandwidth_bytes_per_s"], r["latency_s"]
    values = {
        "full step (ms)": _ms(t["step"]),
        "step without synchronization (ms)": _ms(t["compute"]),
        "difference, in pairs (ms)": _ms(t["communication"]),
        "waiting for a batch (ms)": _ms(t["input"]),
        "all-reduce of one number (ms)": _ms(t["message"]),
        "all-reduce of all gradients (ms)": _ms(t["gradient"]),
        "latency of a message (ms)": f"{1000 * latency:.3f}" if latency is not None else "-",
        "bandwidth (MiB/s)": f"{bandwidth / 2**20:,.0f}" if bandwidth else "-",
        "gradients (MiB)": f"{t['gradient_bytes'] / 2**20:.2f}",
        "all-reduces, all-gathers in a step": f"{t['num_all_reduces']}, {t['num_all_gathers']}",
        "training FLOPs of an image (M)": f"{r['flops_per_image'] / 1e6:,.1f}",
    }
    for name, peak in r["peak_flops_per_s"].items():
        values[f"matrix product, {name} (GFLOP/s)"] = _told(peak, 1e-9)
    return values


def _ms(spread: dict[str, float] | None) -> str:
    return _told(spread, 1e3)


def _told(spread: dict[str, float] | None, scale: float) -> str:
    """Median and extremes to three digits of the median; - for what was not measured: that is not 0."""
    if spread is None:
        return "-"
    median, low, high = (scale * spread[name] for name in ("median", "low", "high"))
    largest = max(abs(median), abs(low), abs(high))
    if largest == 0:
        return "-"
    digits = max(0, 2 - math.floor(math.log10(abs(median) or largest)))
    return f"{median:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


# -- HTML --------------------------------------------------------------------------------------------------------------


def html(benchmark: dict[str, Any], svgs: Sequence[str]) -> str:
    """The report as one file that needs no other."""
    records = benchmark["environments"]
    rows = "".join(f"<tr><td>{escape(n)}</td><td>{escape(v)}</td></tr>" for n, v in facts(benchmark))
    words = "".join(f"<p>{escape(printable(text))}</p>" for text in benchmark["verdict"])
    notes = "".join(f"<li>{escape(note)}</li>" for note in results.notes(records))
    head, step_rows = details(records)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(_title(benchmark))}</title><style>{CSS}</style></head><body>'
        f"<h1>Do more workers pay?</h1><p class=faint>{escape(_title(benchmark))}</p>{words}"
        + "".join(svgs[:1])
        + _html_table(COLUMNS, results.rows(records))
        + (f"<ul>{notes}</ul>" if notes else "")
        + "".join(svgs[1:])
        + (
            f"<h2>Steps</h2>{_html_table(head, step_rows)}<p class=faint>median [lowest, highest]</p>"
            if step_rows
            else ""
        )
        + f"<h2>Method</h2><p>{escape(METHOD)}</p><p>{'<br>'.join(map(escape, FORMULA))}</p>"
        + f'<h2>Facts</h2><table class="facts">{rows}</table></body></html>\n'
    )


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{_html_cell(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


def _html_cell(text: str) -> str:
    """A median, and below it the lowest and the highest value: side by side they make a table too wide."""
    median, bracket, rest = escape(printable(text)).partition(" [")
    return f"{median}<small>[{rest}</small>" if bracket else median

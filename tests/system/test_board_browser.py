"""The Training tab in a real browser shows and stops a live run; a hostile page cannot stop it."""

import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from werkzeug.wrappers import Response

from lockstep.board.plugin import NAME
from lockstep.runs import files
from lockstep.runs.files import read_json, write_json
from lockstep.runs.folder import EXIT_STOPPED
from tests.support.boards import (
    board,
    running,
    save_checkpoint,
    serving,
    write_rows,
    write_run,
    write_trials,
)
from tests.support.browser import CHROMIUM, chromium, page, sync_api
from tests.support.harness import SMALL, wait_until
from tests.support.trainings import training

__all__ = ["chromium", "page"]  # fixtures
expect = sync_api.expect
pytestmark = [
    pytest.mark.full,
    pytest.mark.processes,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no browser here; tests/support/chromium.sh says why"
    ),
]
ENTRY = f"/data/plugin_entry.html?name={NAME}"
ROWS = "tbody tr"


@pytest.fixture
def site(tmp_path: Path, page: Any) -> Iterator[str]:
    """The address of the tab by itself, on the runs below tmp_path / runs.

    It polls more often than every 2 s.
    """
    (tmp_path / "runs").mkdir()
    page.add_init_script(
        "const usual = setInterval; window.setInterval = (work, ms) => usual(work, ms / 5);"
    )
    with serving(board(tmp_path / "runs").application) as address:
        yield address + ENTRY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where runs are; made by `site`, or by the first run."""
    return tmp_path / "runs"


def row(page: Any, name: str) -> Any:
    return page.locator(ROWS).filter(has=page.get_by_role("rowheader", name=name, exact=True))


def test_stop_live_run(tmp_path: Path, page: Any) -> None:
    """By two clicks in the tab. The command that it shows then is tested in test_board.py."""
    (tmp_path / "outputs").mkdir()
    recipe = [*SMALL, "data.train_size=301", "trainer.max_epochs=500", "trainer.devices=2"]
    with training(tmp_path, *recipe) as run, running(tmp_path) as (_, address):
        page.goto(address)
        tab = page.frame_locator("iframe")
        pill, step = (tab.locator(f"{ROWS} {place}") for place in (".state", "td.col-step"))
        expect(pill).to_have_text(re.compile("training|validating"))
        expect(step).not_to_have_text(step.inner_text())
        button = tab.locator(ROWS).get_by_role("button", name=re.compile("^Stop"))
        button.click()
        expect(button).to_have_text("Stop now?")
        page.wait_for_timeout(350)  # a double click would be one press
        assert not run.folder.stop_flag.exists()
        button.click()
        assert run.exit_code() == EXIT_STOPPED
        expect(pill).to_have_text("stopped")


def test_table_states(root: Path, site: str, page: Any) -> None:
    write_run(root / "finished", "finished", percent=100.0)
    stopped = write_run(root / "stopped", "stopped", percent=50.0)
    save_checkpoint(stopped)
    write_run(root / "killed", host=socket.gethostname(), percent=50.0)
    (write_run(root / "broken", None).path / "status.json").write_text("{garbage")
    write_run(root / "live", percent=50.0)
    page.goto(site)
    for name, state, percent in [
        ("finished", "finished", "100 %"),
        ("killed", "no signal", "50 %"),
        ("stopped", "stopped", "50 %"),
        ("broken", "broken", "–"),
        ("live", "training", "50 %"),
    ]:
        line = row(page, name)
        expect(line.locator(".state")).to_have_text(state)
        expect(line.locator(".percent")).to_have_text(percent)
        assert line.get_by_role("button", name=re.compile("^Stop")).is_visible() == (name == "live")
    row(page, "stopped").click()
    expect(page.locator(".resume code")).to_have_text(f"python train.py resume={stopped.path}")


def test_details(root: Path, site: str, page: Any) -> None:
    folder = write_run(root / "run")
    write_rows(folder, 10)
    folder.pictures.mkdir()
    counts = [[8, 2], [0, 5]]
    write_json(
        folder.confusion("test"),
        {"step": 30, "num_classes": 2, "classes": ["cat", "dog"], "counts": counts},
    )
    page.goto(site)
    cells = page.locator("figure", has_text="Confusion matrix").locator("tbody td")
    expect(cells).to_have_text(["8", "2", "", "5"])
    chart = page.locator(".details figure", has_text="Accuracy")
    expect(
        chart.get_by_role("img", name="Accuracy: train 0.92, validation 0.91 at epoch 10")
    ).to_be_visible()


def opened(page: Any, site: str, name: str) -> Any:
    """The table of a sweep, opened from the list."""
    page.goto(site)
    page.get_by_role("button", name=name, exact=True).click()
    grid = page.get_by_role("region", name="Trials")
    expect(grid).to_be_visible()
    return grid


def expect_column(grid: Any, name: str, texts: Sequence[str]) -> None:
    """Wait for the texts of a column, by its head.

    All are read at one moment each time, because columns and rows change later.
    """

    def column() -> list[str | None]:
        return grid.evaluate(
            """(grid, name) => {
              const heads = [...grid.querySelectorAll('thead th')].map(
                (th) => th.innerText.replace(/[▾▴ \\n]/g, '')
              );
              const rows = [...grid.querySelectorAll('tbody tr[data-key]')];
              return rows.map((row) => row.children[heads.indexOf(name)]?.innerText);
            }""",
            name,
        )

    wait_until(lambda: column() == texts, f"{name} of {texts}")


def test_sweep_row_best_setting(root: Path, site: str, page: Any) -> None:
    """The row has the mean of a setting, because a single seed can be luck.

    A setting with a trial in training has no result.
    """
    values = {(0.1, 0): 0.7, (0.1, 1): 0.9, (0.2, 0): 0.95, (0.2, 1): 0.96, (0.3, 0): 0.99}
    folders = write_trials(
        root / "seeds", {(f"optimizer.lr={lr}", f"seed={n}"): v for (lr, n), v in values.items()}
    )
    folders[3].update_status(state="training")
    folders[3].summary.unlink()
    for folder, accuracy in zip(folders, (0.6, 0.7), strict=False):
        folder.write_summary({**folder.read_summary(), "test_loss": 1.0, "test_accuracy": accuracy})
    folds = {
        ("data.folds=2", f"data.fold={fold}", f"seed={n}"): 0.5 + fold / 4
        for fold, n in ((0, 0), (0, 1), (1, 0))
    }
    write_trials(root / "folds", folds)
    page.goto(site)
    sweeps = page.locator("tr[data-sweep]")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(sweeps.locator("th")).to_contain_text(["folds", "seeds"])
    expect(sweeps.locator(".col-best")).to_have_text(["0.6250", "0.8000"])  # of folds, seeds first
    expect(sweeps.locator(".col-test")).to_have_text(["–", "0.6500"])


def test_sweep_row_trials(root: Path, site: str, page: Any) -> None:
    """Two learning rates and two seeds without the last one; the third trial is in training."""
    results = {
        ("optimizer.lr=0.05", "seed=0"): 0.9,
        ("optimizer.lr=0.1", "seed=0"): 0.91,
        ("optimizer.lr=0.05", "seed=1"): 0.92,
    }
    live = write_trials(root / "day" / "sweep", results)[2]
    live.update_status(state="training", percent=50.0)
    live.summary.unlink()
    write_run(root / "day" / "alone", "finished", started=1e9 + 60)
    page.goto(site)
    expect(page.locator("tbody tr")).to_have_count(2)
    sweep = page.locator("tr[data-sweep]")
    expect(sweep.locator(".state")).to_have_text("training")
    expect(sweep.locator(".percent")).to_have_text("83 %")
    sweep.get_by_role("button", name="day/sweep").press("Enter")
    grid = page.get_by_role("region", name="Trials")
    page.get_by_role("button", name="Trials").press("Enter")
    cells = [line.locator("th, td:not(.pick)") for line in grid.locator("tbody tr[data-key]").all()]
    assert [each.all_inner_texts()[:5] for each in cells] == [
        ["1", "finished", "0.9100", "0.1", "0"],
        ["0", "finished", "0.9000", "0.05", "0"],
        ["2", "training", "0.9200", "0.05", "1"],
    ]
    expect(page.locator(".details button.stop")).to_be_visible()  # of the live one
    grid.get_by_role("button", name="trial 0").click()
    expect(page.locator(".details")).to_contain_text(
        "python train.py model.width=8 optimizer.lr=0.05 seed=0"
    )


def test_note_changed_elsewhere(root: Path, site: str, page: Any) -> None:
    folder = write_trials(root / "sweep", {("seed=0",): 0.9})[0]
    grid = opened(page, site, "sweep")
    note = page.get_by_role("textbox", name="Note")
    page.get_by_role("textbox", name="Tags").fill("keep, paper")
    note.fill("unfinished")
    write_json(folder.notes, {"note": "by another", "tags": ["odd"]})
    expect_column(grid, "Tags", ["odd"])
    expect(note).to_have_value("unfinished")  # what is being written stays
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notes")).to_contain_text("Changed elsewhere")
    page.get_by_role("button", name="Save").click()
    expect_column(grid, "Tags", ["keep paper"])
    assert read_json(folder.notes) == {"note": "unfinished", "tags": ["keep", "paper"]}


def test_comparison_mean_and_band(root: Path, site: str, page: Any) -> None:
    """Two rates with three seeds each."""
    accuracies = {"0.05": (0.80, 0.84, 0.91), "0.1": (0.60, 0.70, 0.90)}
    write_trials(
        root / "sweep",
        {
            (f"optimizer.lr={rate}", f"seed={n}"): v
            for rate, values in accuracies.items()
            for n, v in enumerate(values)
        },
    )
    page.goto(site)
    compared = page.get_by_role("region", name="Comparison")
    chart = compared.get_by_role("img").last
    page.get_by_label("Compare sweep", exact=True).check()
    compared.get_by_role("button", name="Settings").press("Enter")
    spreads = {
        rate: f"{mean(values):.4g} ± {stdev(values):.2g}" for rate, values in accuracies.items()
    }
    expected = (
        f"val/accuracy: optimizer.lr=0.1 {spreads['0.1']}, "
        f"optimizer.lr=0.05 {spreads['0.05']} at epoch 2"
    )
    expect(chart).to_have_attribute("aria-label", expected)
    expect(chart.locator("path.band")).to_have_count(2)


def test_runs_sorted_and_filtered(root: Path, site: str, page: Any) -> None:
    for name, state in (("run10", "finished"), ("run9", "failed"), ("run2", "training")):
        write_run(root / name, state)
    page.goto(site)
    runs = page.locator("tbody th")
    page.locator("thead th", has_text="Run").get_by_role("button").click()
    expect(runs).to_have_text(["run2", "run9", "run10"])  # numbers in names are numbers
    page.get_by_label("Filter runs").fill("run1")
    expect(runs).to_have_text(["run10"])
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("State").select_option("live")
    expect(runs).to_have_text(["run2"])


def test_silent_server(root: Path, site: str, page: Any) -> None:
    folder = write_run(root / "run", step=1)
    page.goto(site)
    expect(row(page, "run")).to_contain_text("1")
    alarm = page.get_by_role("alert")
    page.route("**/runs", lambda route: route.abort())
    expect(alarm).to_contain_text("does not answer")
    folder.update_status(step=2)
    page.unroute("**/runs")
    expect(alarm).to_be_hidden()
    expect(row(page, "run")).to_contain_text("2")


def test_hostile_text(root: Path, site: str, page: Any) -> None:
    def attack(name: str) -> str:
        # a folder may hold no slash
        return f"<img src=x onerror=hacked='{name}'><script>hacked='{name}'<\\script>"

    texts = {
        name: attack(name) for name in ("reason", "device", "precision", "host", "monitor", "name")
    }
    folder = write_run(
        root / attack("run"),
        "stopped",
        **texts,
        best=0.5,
        metrics={attack("metric"): 1.0},
        learning_rate=1.0,
    )
    save_checkpoint(folder)
    folder.note(overrides=[attack("override"), "javascript:window.hacked='override'"])
    write_json(folder.notes, {"note": attack("note"), "tags": [attack("tag")]})
    files.write_rows(
        folder.metrics,
        [{"epoch": 1, "train/loss": 1, attack("metric"): 1, attack("column"): attack("value")}],
    )
    (write_run(root / "broken", None).path / "status.json").write_text(attack("status"))
    sweep = write_trials(
        root / attack("sweep"),
        {(attack("x=1"), f"{attack('key')}={attack('value')}"): 0.5, ("seed=1",): 1},
    )
    write_json(sweep[0].notes, {"note": attack("note"), "tags": [attack("tag")]})
    page.goto(site)
    row(page, attack("run")).click()
    expect(page.locator(".details h2")).to_have_text(attack("run"))
    for name in ("reason", "device", "precision", "host", "monitor", "metric"):
        expect(page.locator("dl")).to_contain_text(attack(name))
    expect(page.locator("ul.overrides li").first).to_have_text(attack("override"))
    expect(page.get_by_role("textbox", name="Note")).to_have_value(attack("note"))
    page.locator("tr[data-sweep] button.name").click()
    expect(page.locator(".sheet tbody")).to_contain_text([attack("note")])
    assert page.locator("main").locator("img, script, iframe, a, object, embed").count() == 0
    assert page.evaluate("window.hacked ?? null") is None


def test_stop_in_foreign_frame(root: Path, page: Any) -> None:
    """A page could lay its own buttons over ours.

    `lockstep board` is not shown in such a frame: test_board.py.
    """
    write_run(root / "run")
    with serving(board(root).application) as target:
        text = f'<!doctype html><iframe src="{target + ENTRY}" width=1400 height=800>'
        with serving(Response(text, mimetype="text/html")) as attacker:
            page.goto(attacker)
            frame = page.frame_locator("iframe")
            expect(frame.locator("button.stop").first).to_be_disabled()
            expect(frame.locator(".note")).to_have_text(re.compile("inside a page of another site"))

"""The Training tab in a real browser: a live run is watched and stopped, and a hostile page cannot stop it."""

import json
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from werkzeug.wrappers import Request, Response

from lockstep.board.plugin import NAME
from lockstep.runs import files
from lockstep.runs.files import read_json, write_json
from lockstep.runs.folder import EXIT_STOPPED, SWEEP, RunFolder
from tests.support.boards import (
    BASE,
    board,
    running,
    save_checkpoint,
    serving,
    write_rows,
    write_run,
    write_search,
    write_trials,
)
from tests.support.browser import CHROMIUM, chromium, page, sync_api
from tests.support.harness import SMALL, difference, train_all, wait_until
from tests.support.harness import write_run as write_training
from tests.support.trainings import training

__all__ = ["chromium", "page"]  # fixtures
expect = sync_api.expect
pytestmark = [
    pytest.mark.full,
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser here; tests/support/chromium.sh says why"),
]
ENTRY = f"/data/plugin_entry.html?name={NAME}"
ROWS = "tbody tr"


@pytest.fixture
def site(tmp_path: Path, page: Any) -> Iterator[str]:
    """The address of the tab by itself, on the runs below tmp_path / runs; it polls more often than every 2 s."""
    (tmp_path / "runs").mkdir()
    page.add_init_script("const usual = setInterval; window.setInterval = (work, ms) => usual(work, ms / 5);")
    with serving(board(tmp_path / "runs").application) as address:
        yield address + ENTRY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where runs are; made by `site`, or by the first run."""
    return tmp_path / "runs"


def row(page: Any, name: str) -> Any:
    return page.locator(ROWS).filter(has=page.get_by_role("rowheader", name=name, exact=True))


def expect_names(page: Any, *names: str) -> None:
    expect(page.locator("tbody th")).to_have_text(list(names))


def number_in(cell: Any) -> int:
    """The first number of a cell as `1,234 / 9,500`."""
    return int(cell.inner_text().split()[0].replace(",", ""))


def width(bar: Any) -> float:
    """How far a progress bar is filled, in percent."""
    return float(bar.evaluate("bar => parseFloat(bar.style.width)"))


def test_a_live_run_is_watched_stopped_and_resumed_exactly(tmp_path: Path, page: Any, figure: Any) -> None:
    """Two processes; stopped by two clicks in the tab; resumed by the command the tab shows."""
    (tmp_path / "outputs").mkdir()
    recipe = [*SMALL, "data.train_size=301", "trainer.log_every_n_steps=5", "scheduler=constant"]
    with (
        training(tmp_path, *recipe, "trainer.max_epochs=500", "trainer.devices=2") as run,
        running(tmp_path) as started,
    ):
        page.goto(started.address())
        tab = page.frame_locator("iframe")
        pill, bar, step = (tab.locator(f"{ROWS} {place}") for place in (".state", ".bar > span", "td.col-step"))
        expect(pill).to_have_text(re.compile("training|validating"))
        expect(step).to_have_text(re.compile(r"^[1-9]\d* / 9,500$"))
        before = number_in(step), width(bar)
        expect(step).not_to_have_text(step.inner_text())
        assert number_in(step) > before[0]
        wait_until(lambda: width(bar) > before[1], "a tenth of a percent")
        folder = run.folder
        button = tab.locator(ROWS).get_by_role("button", name=re.compile("^Stop"))
        button.evaluate("button => button.addEventListener('click', () => { button.pressed = Date.now(); })")
        button.click()
        expect(button).to_have_text("Stop now?")
        page.wait_for_timeout(350)  # a double click would be one press
        assert not folder.stop_flag.exists()
        watch = threading.Thread(target=lambda: wait_until(folder.stop_flag.exists) or written.append(time.time()))
        written: list[float] = []
        watch.start()
        button.click()
        watch.join()
        assert run.exit_code() == EXIT_STOPPED
        ended = time.time()
        expect(pill).to_have_text("stopped")
        seen = time.time()
        pressed = tab.locator(ROWS).locator("button.stop").evaluate("button => button.pressed") / 1000
        status = folder.read_status()
        (asked,) = written
        figure(
            f"click to STOP {1000 * (asked - pressed):.0f} ms, STOP to stopped {status['updated'] - asked:.2f} s, "
            f"to the end of all processes {ended - asked:.2f} s, to be seen in the tab {seen - asked:.2f} s"
        )
        assert status["reason"] == "stop flag: Training tab of TensorBoard"
        expect(tab.locator("dl")).to_contain_text("Training tab of TensorBoard")
        expect(tab.get_by_role("heading", name="Loss of a step")).to_be_visible()
        shown = tab.locator(".resume code").inner_text()
    assert shlex.split(shown)[:2] == ["lockstep", "train"]
    shorter = f"trainer.max_epochs={status['epoch'] + 1}"
    alone = write_training(tmp_path / "alone", [*recipe, shorter])
    with training(tmp_path, *shlex.split(shown)[2:], shorter) as resumed:
        train_all([alone], 1)  # meanwhile
        assert resumed.exit_code() == 0, resumed.log.read_text()
    worst = difference(alone, folder)
    figure(f"stopped after step {status['step']}, difference to one uncut process {worst:.1e}")
    assert worst <= 1e-12


def test_the_tab_follows_the_theme_of_tensorboard_and_rests_while_hidden(tmp_path: Path, page: Any) -> None:
    write_run(tmp_path / "outputs" / "live")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with running(tmp_path) as started:
        page.goto(started.address())
        html = page.frame_locator("iframe").locator("html")
        expect(html).not_to_have_class(re.compile("dark"))
        page.evaluate("document.body.classList.add('dark-mode')")
        expect(html).to_have_class(re.compile("dark"))
        frame = page.locator("iframe")
        frame.evaluate("frame => { frame.style.display = 'none'; }")  # as TensorBoard does for another tab
        page.wait_for_timeout(500)
        asked.clear()
        page.wait_for_timeout(3000)
        assert [url for url in asked if "/runs" in url] == []
        frame.evaluate("frame => { frame.style.display = ''; }")
        wait_until(lambda: page.wait_for_timeout(20) or any("/runs" in url for url in asked), "polls again")
        assert all(re.match(r"(http://localhost:\d+/|data:|blob:)", url) for url in asked)


def test_every_end_of_a_run_is_shown_as_such(root: Path, site: str, page: Any) -> None:
    numbers = {"percent": 50.0, "epoch": 5, "max_epochs": 10, "workers": 2, "device": "cpu", "best": 0.9871}
    finished = write_run(root / "finished", "finished", **{**numbers, "percent": 100.0}, monitor="val/accuracy")
    write_rows(finished, 10)
    failed = write_run(root / "failed", "failed", reason="ValueError: no numbers", **numbers)
    save_checkpoint(failed)
    write_run(root / "killed", host=socket.gethostname(), **numbers)
    save_checkpoint(write_run(root / "stopped", "stopped", reason="signal SIGTERM", **numbers))
    write_run(root / "new", None)
    broken = write_run(root / "broken", None)
    (broken.path / "status.json").write_text("{garbage")
    write_run(root / "live", remaining_s=75.0, images_per_s=1234.5, **numbers)
    page.goto(site)
    for name, state, percent in [
        ("finished", "finished", "100 %"),
        ("failed", "failed", "50 %"),
        ("killed", "no signal", "50 %"),
        ("stopped", "stopped", "50 %"),
        ("new", "not started", "–"),
        ("broken", "broken", "–"),
        ("live", "training", "50 %"),
    ]:
        expect(row(page, name).locator(".state")).to_have_text(state)
        expect(row(page, name).locator(".percent")).to_have_text(percent)
        assert row(page, name).get_by_role("button", name=re.compile("^Stop")).is_visible() == (name == "live")
    cells = row(page, "live").locator("td[class*=col-]").all_text_contents()
    assert cells[2:-1] == ["", "5 / 10", "–", "1:15", "1,235", "–", "2", "cpu", "0.9871", "–", ""]
    for name, reason, command in [
        ("failed", "ValueError: no numbers", f"python train.py resume={failed.path}"),
        ("stopped", "signal SIGTERM", f"python train.py resume={root / 'stopped'}"),
        ("broken", "status.json cannot be read", None),
    ]:
        row(page, name).click()
        expect(page.locator(".details h2")).to_have_text(name)
        expect(page.locator("dl")).to_contain_text(reason)
        if command is None:
            expect(page.locator(".resume")).to_be_hidden()
        else:
            expect(page.locator(".resume code")).to_have_text(command)


def test_a_run_has_fields_overrides_and_confusion_matrix(root: Path, site: str, page: Any) -> None:
    folder = write_run(
        root / "run", "training", epoch=3, max_epochs=10, step=30, total_steps=100, learning_rate=0.05, elapsed_s=61.0,
        remaining_s=3725.0, precision="bf16", host="elsewhere", metrics={"val/accuracy": 0.98},
    )  # fmt: skip
    folder.note(overrides=["optimizer.lr=0.1", "model.width=8"])
    page.goto(site)
    for pair in [
        "Elapsed1:01", "Time left1:02:05", "Epoch3 / 10", "Step30 / 100", "Learning rate0.05",
        "Precisionbf16", "Hostelsewhere", "val/accuracy0.9800",
    ]:  # fmt: skip
        expect(page.locator("dl")).to_contain_text(pair)
    expect(page.locator("ul.overrides li")).to_have_text(["optimizer.lr=0.1", "model.width=8"])
    matrix = page.locator("figure", has_text="Confusion matrix")
    expect(matrix).to_be_hidden()
    folder.pictures.mkdir()
    counts = [[8, 2], [0, 5]]
    write_json(folder.confusion("test"), {"step": 30, "num_classes": 2, "classes": ["cat", "dog"], "counts": counts})
    folder.update_status(state="finished")
    expect(matrix).to_contain_text("test, step 30")
    cells = matrix.locator("tbody td")
    assert cells.all_inner_texts() == ["8", "2", "", "5"]
    expect(cells.nth(1)).to_have_attribute("title", "2 of 10 of class cat were predicted as dog")


def test_curves_are_drawn_and_read_by_pointer_and_keys(root: Path, site: str, page: Any) -> None:
    folder = write_run(root / "run", "training", epoch=10)
    write_rows(folder, 10)
    page.goto(site)
    chart = page.locator(".details figure", has_text="Accuracy")
    drawing = chart.get_by_role("img", name="Accuracy: train 0.92, validation 0.91 at epoch 10")
    expect(drawing).to_be_visible()
    expect(chart.locator("path")).to_have_count(2)
    expect(chart.locator("li")).to_have_text(["train 0.92", "validation 0.91"])
    box = drawing.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 15, box["y"] + 60)
    expect(chart.locator(".tip")).to_have_text("epoch 10 train 0.92 validation 0.91 ")
    page.mouse.move(0, 0)
    expect(chart.locator(".tip")).to_be_hidden()
    drawing.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(chart.get_by_role("status")).to_have_text("epoch 2 train 0.6 validation 0.55 ")
    ticks = chart.locator("text").all_text_contents()
    assert ticks == ["0.2", "0.4", "0.6", "0.8", "2", "4", "6", "8", "10", "epoch"]


def write_small(path: Path) -> list[RunFolder]:
    """A sweep of two learning rates and two seeds, without the last one; the third trial is in training."""
    settings = [("0.05", 0), ("0.1", 0), ("0.05", 1)]
    results = {(f"optimizer.lr={lr}", f"seed={seed}"): 0.9 + n / 100 for n, (lr, seed) in enumerate(settings)}
    folders = write_trials(path, results)
    folders[2].update_status(state="training", percent=50.0)
    folders[2].summary.unlink()
    return folders


def opened(page: Any, site: str, name: str) -> Any:
    """The table of a sweep, opened from the list."""
    page.goto(site)
    page.get_by_role("button", name=name, exact=True).click()
    grid = page.get_by_role("region", name="Trials")
    expect(grid).to_be_visible()
    return grid


def expect_column(grid: Any, name: str, texts: Sequence[str]) -> None:
    """Wait for the texts of a column by its head, each time read at one moment: columns and rows change later."""

    def column() -> list[str | None]:
        return grid.evaluate(
            """(grid, name) => {
              const heads = [...grid.querySelectorAll('thead th')].map((th) => th.innerText.replace(/[▾▴ \\n]/g, ''));
              const rows = [...grid.querySelectorAll('tbody tr[data-key]')];
              return rows.map((row) => row.children[heads.indexOf(name)]?.innerText);
            }""",
            name,
        )

    wait_until(lambda: column() == texts, f"{name} of {texts}")


def cells_of(grid: Any) -> list[Any]:
    return [line.locator("th, td:not(.pick)") for line in grid.locator("tbody tr[data-key]").all()]


def test_the_results_of_a_sweep_are_the_means_of_its_best_setting(root: Path, site: str, page: Any) -> None:
    """A single seed of another setting is luck, and one that still trains has no result."""
    values = {(0.1, 0): 0.7, (0.1, 1): 0.9, (0.2, 0): 0.95, (0.2, 1): 0.96, (0.3, 0): 0.99}
    folders = write_trials(root / "seeds", {(f"optimizer.lr={lr}", f"seed={n}"): v for (lr, n), v in values.items()})
    folders[3].update_status(state="training")
    folders[3].summary.unlink()
    for folder, accuracy in zip(folders, (0.6, 0.7), strict=False):
        folder.write_summary({**folder.read_summary(), "test_loss": 1.0, "test_accuracy": accuracy})
        write_json(folder.notes, {"note": "", "tags": ["keep", f"{accuracy}"]})
    folds = {("data.folds=2", f"data.fold={fold}", f"seed={n}"): 0.5 + fold / 4 for fold, n in ((0, 0), (0, 1), (1, 0))}
    write_trials(root / "folds", folds)
    page.goto(site)
    sweeps = page.locator("tr[data-sweep]")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(sweeps.locator("th")).to_contain_text(["folds", "seeds"])
    expect(sweeps.locator(".col-best")).to_have_text(["0.6250", "0.8000"])  # of folds, seeds first
    expect(sweeps.locator(".col-test")).to_have_text(["–", "0.6500"])
    expect(sweeps.locator(".col-tags")).to_have_text(["", "0.6 0.7 keep"])
    expect(sweeps.locator(".col-best").last).to_have_attribute("title", "val/accuracy, optimizer.lr=0.1")


def test_results_have_the_name_of_their_metric(root: Path, site: str, page: Any) -> None:
    """In the head where all rows share it; tags have a column once there is one."""
    known = {"metrics": {"test/loss": 0.3, "test/accuracy": 0.9}, "best": 0.95, "monitor": "val/accuracy"}
    folder = write_run(root / "one", "finished", **known)
    page.goto(site)
    heads, cells = (page.locator(f"{place} .col-best, {place} .col-test") for place in ("thead", "tbody"))
    expect(heads).to_have_text(["Best val/accuracy", "test/accuracy"])
    expect(cells).to_have_text(["0.9500", "0.9000"])
    expect(page.locator("thead .col-tags")).to_be_hidden()
    write_json(folder.notes, {"note": "", "tags": ["keep", "paper"]})
    expect(page.locator("tbody .col-tags")).to_have_text("keep paper")
    write_run(root / "two", "finished", started=0.0, best=0.25, monitor="val/loss", metrics={"test/loss": 0.3})
    expect(heads).to_have_text(["Best", "Test"])
    named = ["val/accuracy 0.9500", "test/accuracy 0.9000", "val/loss 0.2500", "test/loss 0.3000"]
    expect(cells).to_have_text(named)


def test_a_sweep_is_one_row_that_opens_as_a_table_of_its_trials(root: Path, site: str, page: Any) -> None:
    folders = write_small(root / "day" / "sweep")
    write_run(root / "day" / "alone", "finished", started=1e9 + 60)
    page.goto(site)
    expect(page.locator("tbody tr")).to_have_count(2)
    sweep = page.locator("tr[data-sweep]")
    button = sweep.get_by_role("button", name="day/sweep")
    expect(sweep.locator(".state")).to_have_text("training")
    expect(sweep.locator(".percent")).to_have_text("83 %")
    expect(sweep.locator("th")).to_contain_text("2 of 3 trials")
    expect(sweep.locator(".col-overrides")).to_have_text("model.width=8 optimizer.lr=0.05,0.1 seed=0,1")
    expect(sweep.locator("button.stop")).to_be_hidden()
    expect(page.locator(".counts")).to_have_text("4 runs, 1 live")
    button.focus()
    page.keyboard.press("Enter")
    grid = page.get_by_role("region", name="Trials")
    expect(page.locator(".counts")).to_have_text("3 trials, 1 live")
    page.get_by_role("button", name="Trials").press("Enter")
    expect(grid.locator("thead th")).to_have_text(
        ["Compare", "Trial", "State", "val/accuracy", "lr", "seed", "train/loss", "Epoch", "Time", "Tags", "Note"]
    )
    assert [cells.all_inner_texts()[:5] for cells in cells_of(grid)] == [
        ["1", "finished", "0.9100", "0.1", "0"],
        ["0", "finished", "0.9000", "0.05", "0"],
        ["2", "training", "0.9200", "0.05", "1"],
    ]
    expect(page.locator(".details h2")).to_have_text("day/sweep/2")  # the live one
    expect(page.locator(".details button.stop")).to_be_visible()
    grid.get_by_role("button", name="trial 0").click()
    expect(page.locator(".details h2")).to_have_text("day/sweep/0")
    expect(page.locator(".details")).to_contain_text(
        "Train again:python train.py model.width=8 optimizer.lr=0.05 seed=0"
    )
    folders[2].update_status(state="failed")
    expect(page.locator(".counts")).to_have_text("3 trials, 0 live")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    page.go_back()
    expect(grid).to_be_visible()
    page.go_back()
    expect(button).to_be_visible()
    expect(grid).to_be_hidden()


def test_trials_are_sorted_and_filtered(root: Path, site: str, page: Any) -> None:
    settings = {"0.05": 0.9, "0.1": 0.95, "5e-3": 0.8, "1": 0.1}
    folders = write_trials(root / "sweep", {(f"optimizer.lr={lr}",): value for lr, value in settings.items()})
    write_json(folders[2].notes, {"note": "Slow start", "tags": ["keep"]})
    grid = opened(page, site, "sweep")
    expect(grid.locator("tr.best")).to_have_count(1)
    head = grid.get_by_role("button", name="lr", exact=True)
    head.click()
    expect_column(grid, "lr", ["5e-3", "0.05", "0.1", "1"])
    head.press("Enter")
    expect_column(grid, "lr", ["1", "0.1", "0.05", "5e-3"])
    box = page.get_by_label("Filter runs")
    for text, left in [("lr=0.1", ["0.1"]), ("slow keep", ["5e-3"]), ("0.0 finished", ["0.05"])]:
        box.fill(text)
        expect_column(grid, "lr", left)


def test_settings_have_the_mean_of_their_seeds_and_open_their_trials(root: Path, site: str, page: Any) -> None:
    values = {"0.05": (0.90, 0.91, 0.92), "0.1": (0.93, 0.94, 0.95)}
    write_trials(
        root / "sweep", {(f"optimizer.lr={lr}", f"seed={n}"): v for lr, vs in values.items() for n, v in enumerate(vs)}
    )
    untrained = write_run(root / "sweep" / "6", None)
    untrained.note(overrides=["optimizer.lr=0.15", "seed=0"])
    ledger = read_json(root / "sweep" / SWEEP)
    last = {"number": 6, "overrides": ["optimizer.lr=0.15", "seed=0"], "folder": "6"}
    write_json(root / "sweep" / SWEEP, {**ledger, "trials": [*ledger["trials"], {**ledger["trials"][0], **last}]})
    grid = opened(page, site, "sweep")
    assert [cells.all_inner_texts()[:6] for cells in cells_of(grid)] == [
        ["1", "0.1", "3", "0.9400", "0.9152 to 0.9648", "0.0100"],
        ["2", "0.05", "3", "0.9100", "0.8852 to 0.9348", "0.0100"],
        ["3", "0.15", "0, 1 missing", "–", "–", "–"],
    ]
    chart = page.get_by_role("region", name="Charts of the sweep").get_by_role("img")
    expect(chart).to_have_attribute(
        "aria-label", re.compile("^2 settings: optimizer.lr against val/accuracy, from 0.91 to 0.94")
    )
    expect(grid.locator("tr.best").get_by_role("button")).to_have_accessible_name("setting 1, the best")
    grid.get_by_label("Compare setting 2").check()
    expect(page.get_by_role("heading", name="3 runs compared")).to_be_visible()
    expect(page.get_by_label("Lines", exact=True).get_by_role("listitem")).to_have_text([re.compile("3 seeds")])
    grid.get_by_role("button", name="setting 2").click()
    expect(page.get_by_label("Filter runs")).to_have_value("optimizer.lr=0.05")
    expect_column(grid, "seed", ["0", "1", "2"])
    expect(grid.get_by_role("checkbox", checked=False)).to_have_count(0)
    page.get_by_label("Filter runs").fill("")
    expect(grid.locator("tr.best")).to_have_count(3)
    page.get_by_role("button", name="Settings").first.click()
    grid.get_by_role("button", name="setting 1").click()
    expect(page.get_by_label("Filter runs")).to_have_value("optimizer.lr=0.1")
    expect_column(grid, "seed", ["0", "1", "2"])
    expect(page.locator(".counts")).to_have_text("3 of 7 trials, 0 live")


def test_hidden_columns_are_remembered(root: Path, site: str, page: Any) -> None:
    write_trials(root / "sweep", {("x=0.1",): 0.5, ("x=0.2",): 0.25})
    grid = opened(page, site, "sweep")
    page.get_by_role("button", name="Columns").click()
    for name in ("state", "epoch", "training_s", "train/loss", "tags"):
        page.get_by_label(name, exact=True).uncheck()
    page.keyboard.press("Escape")  # closes the menu alone
    shown = ["Compare", "Trial", "val/accuracy", "x", "Note"]
    expect(grid.locator("thead th")).to_have_text(shown)
    page.reload()
    expect(grid.locator("thead th")).to_have_text(shown)


def test_a_thousand_trials_are_drawn_where_they_are_seen(root: Path, site: str, page: Any) -> None:
    write_trials(root / "sweep", {(f"optimizer.lr={n}",): n / 1000 for n in range(1000)})
    grid = opened(page, site, "sweep")
    expect(page.locator(".counts")).to_have_text("1000 trials, 0 live")
    expect(grid.get_by_role("button", name="trial 999")).to_be_visible()
    assert len(cells_of(grid)) < 100
    grid.evaluate("grid => { grid.scrollTop = grid.scrollHeight; }")
    expect(grid.get_by_role("button", name="trial 0", exact=True)).to_be_in_viewport()
    expect(grid.locator("table")).to_have_attribute("aria-rowcount", "1001")
    assert page.evaluate(UNCHANGED) == []


UNCHANGED = """async () => {
  const changes = [];
  const observer = new MutationObserver((records) => {
    for (const {target, type, attributeName, oldValue} of records) {
      const isSame = type === 'attributes' && target.getAttribute(attributeName) === oldValue;
      if (!isSame) changes.push(`${target.className} ${type}`);
    }
  });
  const all = {subtree: true, childList: true, characterData: true, attributes: true, attributeOldValue: true};
  observer.observe(document.body, all);
  await new Promise((done) => setTimeout(done, 3000)); // some polls
  return changes;
}"""


def test_a_note_and_tags_are_written_on_the_page(root: Path, site: str, page: Any) -> None:
    folder = write_trials(root / "sweep", {("seed=0",): 0.9})[0]
    grid = opened(page, site, "sweep")
    page.get_by_role("textbox", name="Note").fill("diverges at first")
    page.get_by_role("textbox", name="Tags").fill("keep, paper")
    page.keyboard.press("Enter")
    expect(page.locator(".message")).to_have_text("Note of sweep/0 saved.")
    expect_column(grid, "Tags", ["keep paper"])
    assert read_json(folder.notes) == {"note": "diverges at first", "tags": ["keep", "paper"]}
    page.get_by_role("textbox", name="Note").fill("unfinished")
    write_json(folder.notes, {"note": "by another", "tags": ["keep"]})
    expect_column(grid, "Tags", ["keep"])
    expect(page.get_by_role("textbox", name="Note")).to_have_value("unfinished")  # what is being written stays
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notes")).to_contain_text("Changed elsewhere to “by another keep”. Save again to replace it.")
    assert read_json(folder.notes)["note"] == "by another"
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notes")).not_to_contain_text("Changed elsewhere")
    assert read_json(folder.notes) == {"note": "unfinished", "tags": ["keep", "paper"]}
    with serving(board(root, "--training_control=off").application) as address:
        page.goto(address + ENTRY)
        expect(page.get_by_role("textbox", name="Note")).to_be_disabled()
        expect(page.locator(".notes")).to_contain_text("--training_control on")


def test_compared_runs_share_charts_and_keep_their_colours(root: Path, site: str, page: Any) -> None:
    folders = write_small(root / "sweep")
    alone = write_run(root / "alone", "finished", started=1e9 + 60)
    alone.note(overrides=["model.width=16"])
    write_rows(alone, 4)
    page.goto(site)
    compared = page.get_by_role("region", name="Comparison")
    expect(compared).to_be_hidden()
    page.get_by_label("Compare sweep", exact=True).check()  # all of its trials
    expect(compared.get_by_role("heading", name="3 runs compared")).to_be_visible()
    compared.get_by_role("button", name="Runs").click()
    page.get_by_label("Compare alone").check()
    legend = compared.get_by_label("Lines").locator("li > span:nth-child(2)")
    expect(legend).to_have_text([
        "model.width=8 optimizer.lr=0.05 seed=1", "model.width=8 optimizer.lr=0.1 seed=0",
        "model.width=8 optimizer.lr=0.05 seed=0", "model.width=16",
    ])  # fmt: skip
    accuracy = compared.locator("figure").last
    expect(compared.get_by_role("combobox").last).to_have_value("val/accuracy")
    expect(accuracy.locator("path")).to_have_count(4)
    colours = [path.evaluate("path => getComputedStyle(path).stroke") for path in accuracy.locator("path").all()]
    assert len(set(colours)) == 4
    compared.get_by_role("button", name=re.compile("Remove .*optimizer.lr=0.1")).click()
    expect(accuracy.locator("path")).to_have_count(3)
    left = [path.evaluate("path => getComputedStyle(path).stroke") for path in accuracy.locator("path").all()]
    assert left == [colours[0], colours[2], colours[3]]
    write_rows(folders[2], 9)  # a live line grows
    folders[2].update_status(epoch=9)
    expect(accuracy.get_by_role("img")).to_have_attribute("aria-label", re.compile("at epoch 9$"))
    compared.get_by_role("combobox").last.select_option("train/loss")
    expect(accuracy.get_by_role("img")).to_have_attribute("aria-label", re.compile("^train/loss: .* at epoch 9$"))
    page.get_by_role("button", name="sweep", exact=True).click()
    expect(compared.get_by_role("heading", name="2 runs compared")).to_be_visible()  # not with `alone`
    compared.get_by_role("button", name="Clear").click()
    expect(compared).to_be_hidden()
    page.keyboard.press("Escape")
    expect(compared.get_by_role("heading", name="1 run compared")).to_be_visible()
    compared.get_by_role("button", name="Clear").click()
    expect(compared).to_be_hidden()


def test_repeated_settings_are_drawn_as_mean_and_band(root: Path, site: str, page: Any) -> None:
    """Two rates, each with three seeds, then with two seeds in each of two folds; 19 runs are too many lines."""
    accuracies = {"lr=0.05": (0.80, 0.84, 0.91), "lr=0.1": (0.60, 0.70, 0.90)}
    for setting, seeds in accuracies.items():
        for seed, accuracy in enumerate(seeds):
            folder = write_run(root / "seeds" / f"{setting}_{seed}", "finished")
            folder.note(overrides=[f"optimizer.{setting}", f"seed={seed}"])
            epochs = range(1, 4 if seed == 2 else 3)  # one is longer than the others
            files.write_rows(
                folder.metrics, [{"epoch": epoch, "step": epoch, "val/accuracy": accuracy} for epoch in epochs]
            )
    for trial, accuracy in enumerate((0.7, 0.9, 0.4, 0.4)):
        folder = write_run(root / "folds" / str(trial), "finished")
        folder.note(overrides=["data.folds=2", f"data.fold={trial // 2}", f"seed={trial % 2}"])
        files.write_rows(folder.metrics, [{"epoch": 1, "step": 1, "val/accuracy": accuracy}])
    for trial in range(16):
        write_run(root / "grid" / str(trial), "finished").note(overrides=[f"model.width={trial}"])
    for name in ("seeds", "folds", "grid"):
        (root / name / SWEEP).write_text("{}")
    page.goto(site)
    page.get_by_label("Compare seeds", exact=True).check()
    compared = page.get_by_role("region", name="Comparison")
    lines = compared.get_by_label("Lines", exact=True).get_by_role("listitem")
    compared.get_by_role("button", name="Runs").press("Enter")
    expect(lines).to_have_count(6)
    compared.get_by_role("button", name="Settings").press("Enter")
    expect(lines).to_have_text(["optimizer.lr=0.13 seeds×", "optimizer.lr=0.053 seeds×"])
    chart = compared.get_by_role("img").last
    means = [(f"{mean(values):.4g}", f"{stdev(values):.2g}") for values in reversed(accuracies.values())]
    expected = ", ".join(f"optimizer.lr={rate} {m} ± {d}" for rate, (m, d) in zip(("0.1", "0.05"), means, strict=True))
    expect(chart).to_have_attribute("aria-label", f"val/accuracy: {expected} at epoch 2")
    expect(chart.locator("path.band")).to_have_count(2)
    compared.get_by_role("button", name="Clear").click()
    page.get_by_label("Compare folds", exact=True).check()
    spread = f"{mean((0.8, 0.4)):.4g} ± {stdev((0.8, 0.4)):.2g}"
    expect(lines).to_have_text(["data.folds=22 folds×"])
    expect(chart).to_have_attribute("aria-label", f"val/accuracy: data.folds=2 {spread} at epoch 1")
    page.get_by_label("Compare grid", exact=True).check()
    expect(lines).to_have_count(17)
    expect(compared.get_by_role("button", name="Runs")).to_be_disabled()  # 20 lines
    page.get_by_label("Compare seeds", exact=True).click()
    expect(page.locator(".message")).to_have_text("At most 18 lines can be compared.")
    expect(lines).to_have_count(18)
    expect(lines.last).to_contain_text("3 seeds")  # of a setting, all are taken or none


def test_runs_are_sorted_and_filtered_by_pointer_and_keys(root: Path, site: str, page: Any) -> None:
    for name, best, state in [("run10", 0.5, "finished"), ("run9", 0.7, "failed"), ("run2", None, "training")]:
        write_run(root / name, state, device="gpu" if name == "run9" else "cpu", **({"best": best} if best else {}))
    page.goto(site)
    head = page.locator("thead th", has_text="Run")
    expect(page.locator("thead th[aria-sort]")).to_have_text(re.compile("Started"))
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect_names(page, "run2", "run9", "run10")  # numbers in names are numbers
    page.keyboard.press("Enter")  # the button still has the focus
    expect(head).to_have_attribute("aria-sort", "descending")
    expect_names(page, "run10", "run9", "run2")
    best = page.locator("thead th", has_text="Best").get_by_role("button")
    best.focus()
    page.keyboard.press("Space")
    expect_names(page, "run9", "run10", "run2")
    page.keyboard.press("Space")
    expect_names(page, "run10", "run9", "run2")  # what is not known comes last
    expect(page.locator("thead th[aria-sort]")).to_have_count(1)
    box = page.get_by_label("Filter runs")
    for words, left in [("GPU", ["run9"]), ("cpu fin", ["run10"]), ("failed", ["run9"]), ("nothing", [])]:
        box.fill(words)
        expect_names(page, *left)
    expect(page.get_by_text("No run matches the filter.")).to_be_visible()
    box.fill("")
    page.get_by_label("State").select_option("live")
    expect_names(page, "run2")
    expect(page.locator(".counts")).to_have_text("1 of 3 runs, 1 live")
    page.get_by_label("State").select_option("failed")
    expect_names(page, "run9")


def test_a_silent_tensorboard_is_noticed_and_its_return_too(root: Path, site: str, page: Any) -> None:
    folder = write_run(root / "run", step=1)
    page.goto(site)
    expect(row(page, "run")).to_contain_text("1")
    alarm = page.get_by_role("alert")
    page.route("**/runs", lambda route: route.fulfill(status=403, body="Open the address."))  # of a board started again
    expect(alarm).to_have_text(re.compile("Open the address. Last update at .*. Trying again."))
    page.route("**/runs", lambda route: route.abort())
    expect(alarm).to_have_text(re.compile("TensorBoard does not answer. Last update at .*. Trying again."))
    folder.update_status(step=2)
    page.unroute("**/runs")
    expect(alarm).to_be_hidden()
    expect(row(page, "run")).to_contain_text("2")


def stop_button(page: Any, name: str) -> Any:
    return row(page, name).locator("button.stop")


def test_one_press_a_late_press_or_a_double_click_stops_nothing(root: Path, site: str, page: Any) -> None:
    folder = write_run(root / "run")
    page.goto(site)
    button = stop_button(page, "run")
    button.dblclick()
    expect(button).to_have_text("Stop now?")
    expect(page.locator(".message")).to_have_text("Press again within 4 seconds to stop run.")
    page.wait_for_timeout(4100)
    expect(button).to_have_text("Stop")
    button.click()  # the first press again
    expect(button).to_have_text("Stop now?")
    assert not folder.stop_flag.exists()


def test_the_page_shows_why_stop_is_off(root: Path, page: Any) -> None:
    write_run(root / "run")
    with serving(board(root, "--training_control=off").application) as address:
        page.goto(address + ENTRY)
        expect(stop_button(page, "run")).to_be_disabled()
        expect(page.locator(".note")).to_have_text(re.compile("--training_control on"))


def test_hostile_text_is_shown_and_never_executed(root: Path, site: str, page: Any) -> None:
    def attack(name: str) -> str:
        return f"<img src=x onerror=hacked='{name}'><script>hacked='{name}'<\\script>"  # a folder may hold no slash

    texts = {name: attack(name) for name in ("reason", "device", "precision", "host", "monitor", "name")}
    folder = write_run(
        root / attack("run"), "stopped", **texts, best=0.5, metrics={attack("metric"): 1.0}, learning_rate=1.0
    )
    save_checkpoint(folder)
    folder.note(overrides=[attack("override"), "javascript:window.hacked='override'"])
    write_json(folder.notes, {"note": attack("note"), "tags": [attack("tag")]})
    files.write_rows(
        folder.metrics, [{"epoch": 1, "train/loss": 1, attack("metric"): 1, attack("column"): attack("value")}]
    )
    (write_run(root / "broken", None).path / "status.json").write_text(attack("status"))
    page.goto(site)
    row(page, attack("run")).click()
    expect(page.locator(".details h2")).to_have_text(attack("run"))
    for name in ("reason", "device", "precision", "host", "monitor", "metric"):
        expect(page.locator("dl")).to_contain_text(attack(name))
    expect(page.locator("ul.overrides li").first).to_have_text(attack("override"))
    expect(page.locator(".resume code")).to_contain_text("onerror")
    expect(page.get_by_role("textbox", name="Note")).to_have_value(attack("note"))
    page.get_by_label("Filter runs").fill(attack("run"))
    expect(page.locator(ROWS)).to_have_count(1)
    sweep = write_trials(
        root / attack("sweep"), {(attack("x=1"), f"{attack('key')}={attack('value')}"): 0.5, ("seed=1",): 1}
    )
    write_json(sweep[0].notes, {"note": attack("note"), "tags": [attack("tag")]})
    page.get_by_label("Filter runs").fill("")
    page.locator("tr[data-sweep] button.name").click()
    expect(page.locator(".sheet tbody")).to_contain_text([attack("note")])
    assert page.locator("main").locator("img, script, iframe, a, object, embed").count() == 0
    assert page.evaluate("window.hacked ?? null") is None


ATTACKS = """
const results = {};
const attempt = async (name, work) => {
  try { results[name] = await work(); } catch (error) { results[name] = `refused: ${error.name}`; }
};
const url = (path) => `TARGET/data/plugin/NAME/${path}`;
const body = JSON.stringify({run: 'ID'});
const post = (options) => fetch(url('stop'), {method: 'POST', body, ...options}).then((answer) => answer.status);
await attempt('plain', () => post({}));
await attempt('no-cors', () => post({mode: 'no-cors'}));
await attempt('no-cors json', () => post({mode: 'no-cors', headers: {'Content-Type': 'application/json'}}));
await attempt('json', () => post({headers: {'Content-Type': 'application/json'}}));
await attempt('read', () => fetch(url('control')).then((answer) => answer.text()));
await attempt('read runs', () => fetch(url('runs')).then((answer) => answer.text()));
await attempt('beacon', () => navigator.sendBeacon(url('stop'), new Blob([body], {type: 'text/plain'})));
await attempt('get', () => new Promise((done) => {
  const image = new Image();
  image.onload = image.onerror = () => done('asked');
  image.src = url('stop?run=ID');
}));
for (const enctype of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data']) {
  await attempt(`form ${enctype}`, () => new Promise((done) => {
    const frame = document.createElement('iframe');
    frame.name = enctype;
    document.body.append(frame);
    const form = document.createElement('form');
    Object.assign(form, {method: 'POST', action: url('stop'), enctype, target: enctype});
    const field = document.createElement('input');
    Object.assign(field, {name: '{"run": "ID", "x": "', value: '"}'});
    form.append(field);
    document.body.append(form);
    frame.onload = () => done('sent');
    form.submit();
  }));
}
return results;
"""


def test_a_page_of_another_site_stops_nothing(root: Path, page: Any) -> None:
    folder = write_run(root / "run")
    seen: list[tuple[str, int]] = []
    client = board(root)
    key = json.loads(client.get(f"{BASE}/runs").get_data())["runs"][0]["id"]

    def watched(environ: dict[str, Any], start_response: Any) -> Any:
        def start(status: str, *rest: Any) -> Any:
            if environ["PATH_INFO"].endswith("/stop"):
                seen.append((environ["REQUEST_METHOD"], int(status.split()[0])))
            return start_response(status, *rest)

        return client.application(environ, start)

    @Request.application
    def hostile(request: Request) -> Response:
        return Response("<!doctype html><body>Look, kittens!", mimetype="text/html")

    with serving(watched) as target, serving(hostile) as attacker:
        page.goto(attacker)
        code = ATTACKS.replace("TARGET", target).replace("NAME", NAME).replace("ID", key)
        results = page.evaluate(f"async () => {{ {code} }}")
        assert not folder.stop_flag.exists()
        for name in ("plain", "json", "read", "read runs"):
            assert results[name] == "refused: TypeError", results
        wait_until(lambda: sum(method == "POST" for method, _ in seen) >= 6, "the requests arrive")
        assert {code for method, code in seen if method == "POST"} <= {403, 415}
        assert {code for method, code in seen if method != "POST"} == {405}


def test_under_a_foreign_frame_the_button_is_off(root: Path, tmp_path: Path, page: Any) -> None:
    """A page could lay its own buttons over ours. `lockstep board` is not shown in such a frame at all."""
    folder = write_run(root / "run")

    def page_with(address: str) -> Any:
        @Request.application
        def hostile(request: Request) -> Response:
            return Response(f'<!doctype html><iframe src="{address}" width=1400 height=800>', mimetype="text/html")

        return hostile

    with serving(board(root).application) as target, serving(page_with(target + ENTRY)) as attacker:
        page.goto(attacker)
        frame = page.frame_locator("iframe")
        button = frame.locator("button.stop").first
        expect(button).to_be_disabled()
        expect(frame.locator(".note")).to_have_text(re.compile("inside a page of another site"))
        for _ in range(2):
            button.click(force=True)
            page.wait_for_timeout(350)
        assert not folder.stop_flag.exists()
    with running(tmp_path, "--logdir", "runs") as started:
        page.goto(started.address())
        address = started.address().partition("/?")[0] + ENTRY
        expect(page).to_have_url(re.compile(rf"^http://localhost:\d+/#{NAME}$"))  # no token in it any more
        with serving(page_with(address)) as attacker:
            page.goto(attacker)
            page.wait_for_timeout(1000)
            assert [found.url for found in page.frames if found.url.startswith(address)] == []
            page.goto(address)
            expect(stop_button(page, "run")).to_be_enabled()


def test_a_search_shows_its_trials_across_settings_and_what_decides(root: Path, site: str, page: Any) -> None:
    """The filter of the table holds for the lines; one is read and opened by keys, one by the pointer."""
    rates = [10 ** (number / 12 - 2) for number in range(25)]
    results = {(f"optimizer.lr={rate:.5f}", f"optimizer={'sgd' if number % 2 else 'adamw'}"): 0.95 - abs(rate - 0.1) / 2
               for number, rate in enumerate(rates)}  # fmt: skip
    write_search(root / "search", results)
    page.goto(f"{site}#search")
    charts = page.get_by_role("region", name="Charts of the sweep")
    chart = charts.get_by_role("img")
    expect(chart).to_have_attribute("aria-label", re.compile(
        r"^25 trials: optimizer.lr, optimizer against val/accuracy, from 0\.5 to 0\.95\. "))  # fmt: skip
    lines = charts.locator("svg.lines path")
    expect(lines).to_have_count(25)
    labels = chart.locator("g").first.locator("text:not(.head)")
    expect(labels).to_have_text(["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"])  # logarithmic
    bars = charts.get_by_label("Importance of settings for val/accuracy").get_by_role("listitem")
    expect(bars).to_have_text([re.compile(r"^optimizer\.lr \d+ %"), re.compile(r"^optimizer \d+ %, may be chance$")])
    expect(charts).to_contain_text("which of the 25 finished trials are the best quarter by val/accuracy")
    chart.focus()
    page.keyboard.press("Home")
    expect(charts.get_by_role("status")).to_have_text(
        re.compile(r"^trial 12, finished optimizer.lr 0\.1 optimizer adamw val/accuracy 0\.95$")
    )
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".details h2")).to_have_text("search/11")
    page.get_by_label("Filter runs").fill("optimizer=sgd search/2")
    expect(lines).to_have_count(2)
    end = lines.last.evaluate("path => [path.getPointAtLength(1e4).x, path.getPointAtLength(1e4).y]")
    chart.hover(position={"x": end[0] - 2, "y": end[1]})
    expect(charts.locator(".tip")).to_contain_text("trial 21, finished")
    chart.click(position={"x": end[0] - 2, "y": end[1]})
    expect(page.locator(".details h2")).to_have_text("search/21")
    charts.get_by_role("combobox").select_option("train/loss")
    expect(chart).to_have_attribute("aria-label", re.compile("^2 trials: .* against train/loss, from 1 to 1"))

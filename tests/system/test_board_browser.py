"""The Training tab in a real browser: a live run is watched and stopped, and a hostile page cannot stop it."""

import json
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from werkzeug.wrappers import Request, Response

from lockstep.board.plugin import NAME
from lockstep.runs.files import write_json
from lockstep.runs.folder import EXIT_STOPPED, SWEEP, RunFolder
from tests.support.boards import BASE, board, running, save_checkpoint, serving, write_rows, write_run
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
    assert cells[2:-1] == ["", "5 / 10", "–", "1:15", "1,235", "–", "2", "cpu", "0.9871"]
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


def test_a_run_has_fields_overrides_configuration_and_confusion_matrix(root: Path, site: str, page: Any) -> None:
    folder = write_run(
        root / "run", "training", epoch=3, max_epochs=10, step=30, total_steps=100, learning_rate=0.05, elapsed_s=61.0,
        remaining_s=3725.0, precision="bf16", host="elsewhere", metrics={"val/accuracy": 0.98},
    )  # fmt: skip
    folder.note(overrides=["optimizer.lr=0.1", "model.width=8"])
    folder.config.write_text("optimizer:\n  lr: 0.1\n")
    page.goto(site)
    for pair in [
        "Statustraining", "Elapsed1:01", "Time left1:02:05", "Epoch3 / 10", "Iteration30 / 100", "Learning rate0.05",
        "Precisionbf16", "Hostelsewhere", "val/accuracy0.9800",
    ]:  # fmt: skip
        expect(page.locator("dl")).to_contain_text(pair)
    expect(page.locator("ul.overrides li")).to_have_text(["optimizer.lr=0.1", "model.width=8"])
    page.get_by_text("config.yaml, as resolved").click()
    expect(page.locator("pre")).to_have_text("optimizer:\n  lr: 0.1\n")
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


def write_sweep(path: Path, *, states: tuple[str, ...], mode: str = "max") -> list[RunFolder]:
    """A sweep whose trials end at 0.9, 0.91, ... and differ in learning rate and seed."""
    folders = []
    for number, state in enumerate(states):
        percent = 100.0 if state == "finished" else 50.0
        numbers = {"best": 0.9 + 0.01 * number, "monitor": "val/accuracy", "mode": mode, "percent": percent}
        folder = write_run(path / f"{number}_lr", state, started=1e9 + number, **numbers)
        folder.note(overrides=["model.width=8", f"optimizer.lr={0.1 if number % 2 else 0.05}", f"seed={number // 2}"])
        write_rows(folder, 5 + number)
        folders.append(folder)
    (path / SWEEP).write_text("{}")
    return folders


def test_a_sweep_over_folds_has_no_best_one(root: Path, site: str, page: Any) -> None:
    for number, folder in enumerate(write_sweep(root / "sweep", states=("finished", "finished"))):
        folder.note(overrides=["data.folds=2", f"data.fold={number}"])
    page.goto(site)
    sweep = page.locator("tr[data-sweep]")
    expect(sweep.locator(".col-overrides")).to_have_text("data.fold=0,1 data.folds=2")
    expect(sweep.locator(".col-best")).to_have_text("–")
    sweep.get_by_role("button", name="sweep").click()
    assert page.locator("tr.trial .col-best").all_inner_texts() == ["0.9100", "0.9000"]


def test_a_sweep_is_one_row_that_opens_into_its_trials(root: Path, site: str, page: Any) -> None:
    write_sweep(root / "day" / "sweep", states=("finished", "finished", "training"))
    write_run(root / "day" / "alone", "finished", started=1e9 + 60)
    page.goto(site)
    expect(page.locator("tbody tr")).to_have_count(2)
    sweep = page.locator("tr[data-sweep]")
    button = sweep.get_by_role("button", name="day/sweep")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(sweep.locator(".state")).to_have_text("training")
    expect(sweep.locator(".percent")).to_have_text("83 %")
    expect(sweep.locator("th")).to_contain_text("2 of 3 trials")
    expect(sweep.locator(".col-overrides")).to_have_text("optimizer.lr=0.05,0.1 seed=0,1 model.width=8")
    expect(sweep.locator(".col-best")).to_have_text("0.9200")
    expect(sweep.locator("button.stop")).to_be_hidden()
    expect(page.locator(".counts")).to_have_text("4 runs, 1 live")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    assert page.locator("tbody .own").all_inner_texts() == ["alone", "sweep", "2_lr", "1_lr", "0_lr"]
    trial = page.locator("tr.trial").last
    expect(trial.locator(".col-overrides")).to_have_text("optimizer.lr=0.05 seed=0")
    expect(page.locator("tr.trial button.stop:visible")).to_have_count(1)
    trial.click()
    expect(page.locator(".details h2")).to_have_text("day/sweep/0_lr")
    page.locator("thead th", has_text="Best").get_by_role("button").click()
    assert page.locator("tbody .own").all_inner_texts() == ["sweep", "2_lr", "1_lr", "0_lr", "alone"]
    sweep.click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Filter runs").fill("seed=1")  # what is looked for is shown, also in a sweep that is closed
    assert page.locator("tbody .own").all_inner_texts() == ["sweep", "2_lr"]


def test_compared_runs_share_charts_and_keep_their_colours(root: Path, site: str, page: Any) -> None:
    folders = write_sweep(root / "sweep", states=("finished", "finished", "training"))
    alone = write_run(root / "alone", "finished", started=1e9 + 60)
    alone.note(overrides=["model.width=16"])
    write_rows(alone, 4)
    page.goto(site)
    compared = page.get_by_role("region", name="Comparison")
    expect(compared).to_be_hidden()
    page.get_by_label("Compare sweep", exact=True).check()  # all of its trials
    expect(compared.get_by_role("heading", name="3 runs compared")).to_be_visible()
    page.get_by_label("Compare alone").check()
    legend = compared.get_by_label("Lines").locator("li > span:nth-child(2)")
    expect(legend).to_have_text([
        "optimizer.lr=0.05 seed=1 model.width=8", "optimizer.lr=0.1 seed=0 model.width=8",
        "optimizer.lr=0.05 seed=0 model.width=8", "model.width=16",
    ])  # fmt: skip
    accuracy = compared.locator("figure", has_text="Accuracy")
    expect(accuracy.locator("path")).to_have_count(4)
    colours = [path.evaluate("path => getComputedStyle(path).stroke") for path in accuracy.locator("path").all()]
    assert len(set(colours)) == 4
    compared.get_by_role("button", name=re.compile("Remove optimizer.lr=0.1")).click()
    expect(accuracy.locator("path")).to_have_count(3)
    left = [path.evaluate("path => getComputedStyle(path).stroke") for path in accuracy.locator("path").all()]
    assert left == [colours[0], colours[2], colours[3]]
    write_rows(folders[2], 9)  # a live line grows
    folders[2].update_status(epoch=9)
    expect(accuracy.get_by_role("img")).to_have_attribute("aria-label", re.compile("at epoch 9$"))
    compared.get_by_role("button", name="Clear").click()
    expect(compared).to_be_hidden()


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
    folder.config.write_text(attack("config"))
    folder.write_metrics([{"epoch": 1, "train/loss": 1, attack("column"): attack("value")}])
    (write_run(root / "broken", None).path / "status.json").write_text(attack("status"))
    page.goto(site)
    row(page, attack("run")).click()
    expect(page.locator(".details h2")).to_have_text(attack("run"))
    for name in ("reason", "device", "precision", "host", "monitor", "metric"):
        expect(page.locator("dl")).to_contain_text(attack(name))
    expect(page.locator("ul.overrides li").first).to_have_text(attack("override"))
    page.get_by_text("config.yaml, as resolved").click()
    expect(page.locator("pre")).to_contain_text(attack("config"))
    expect(page.locator(".resume code")).to_contain_text("onerror")
    page.get_by_label("Filter runs").fill(attack("run"))
    expect(page.locator(ROWS)).to_have_count(1)
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

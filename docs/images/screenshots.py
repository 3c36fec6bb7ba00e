"""Take screenshots: `python docs/images/screenshots.py FOLDER` takes some minutes on two cores.

They show the Training tab, light and dark, 1,000 and 1,400 pixels wide, with a sweep and curves,
the other tabs of TensorBoard, and the terminal at 80 and 140 columns (in tmux). `board.png` is the
one of the README. The script trains a sweep of 20 small networks and a run below FOLDER/outputs
unless there are runs already, and one more by two processes while it looks at the tab. It needs
tmux, playwright and Chromium (tests/support/chromium.sh).
"""

import io
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

TRAIN = str(Path(__file__).parents[2] / "train.py")
SWEEP = ("-m", "optimizer.lr=0.05,0.1", "model.width=8,16", "seed=0,1,2,3,4")
ALONE = (
    "optimizer=adamw",
    "optimizer.lr=0.003",
    "model.width=4",
    "trainer.max_epochs=6",
    "strategy=cpu",
)
SHORT = ("model.width=8", "trainer.max_epochs=4", "strategy=cpu")
LIVE = ("model.width=8", "trainer.max_epochs=120", "trainer.devices=2", "strategy=cpu")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
)


def main(folder: Path) -> None:
    """Train, and take the pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "outputs").exists():
        for words in (SWEEP, ALONE):
            subprocess.run(
                [sys.executable, TRAIN, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
    live = subprocess.Popen([sys.executable, TRAIN, *LIVE], cwd=folder, stdout=subprocess.DEVNULL)
    board = subprocess.Popen(
        [sys.executable, "-m", "lockstep.cli.main", "board"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert board.stdout is not None
        address = next(word for word in board.stdout.readline().split() if word.startswith("http"))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
            page = browser.new_page(device_scale_factor=1)
            for width in (1400, 1000):
                page.set_viewport_size({"width": width, "height": 1280})
                take(page, address, folder, width)
                for name in ("timeseries", "custom_scalars", "hparams"):
                    page.goto(address.partition("#")[0] + f"#{name}")
                    page.reload()  # else the fragment alone changes
                    page.wait_for_timeout(8000)
                    page.screenshot(path=folder / f"{name}_{width}.png")
            for columns in (80, 140):
                page.set_content(terminal(folder, columns))
                page.locator("svg").screenshot(path=folder / f"terminal_{columns}.png")
            browser.close()
    finally:
        for process in (board, live):
            process.terminate()
            process.wait()


def take(page: Any, address: str, folder: Path, width: int) -> None:
    """Draw the tab with a sweep and the curves of its settings, and with a run."""
    page.goto(address)
    page.reload()
    tab = page.frame_locator("iframe")
    tab.locator("dt", has_text="val/accuracy").wait_for(timeout=120_000)
    tab.get_by_role("heading", name="Loss of a step").wait_for(timeout=60_000)
    compared = tab.get_by_role("region", name="Comparison")
    tab.locator("tr[data-sweep]").get_by_role("checkbox").check()
    tab.locator("tr[data-sweep]").click()
    page.wait_for_timeout(3000)
    tab.locator("main").evaluate("main => main.ownerDocument.scrollingElement.scrollTo(0, 0)")
    page.screenshot(path=folder / f"board_{width}_light.png")
    if width == 1400:
        box = compared.bounding_box()
        shown = Image.open(folder / "board_1400_light.png").crop(
            (0, 0, width, round(box["y"] + box["height"]) + 12)
        )
        shown.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(
            folder / "board.png", optimize=True
        )
    page.evaluate("document.body.classList.add('dark-mode')")
    compared.get_by_role("img").last.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(500)
    tab.locator("main").evaluate("main => main.ownerDocument.scrollingElement.scrollTo(0, 0)")
    page.screenshot(path=folder / f"board_{width}_dark.png")
    compared.get_by_role("button", name="Clear").click()
    tab.get_by_role("button", name="All runs").click()
    tab.locator("tbody tr:not([data-sweep])").last.click()
    tab.get_by_role("heading", name="Confusion matrix").wait_for(timeout=60_000)
    page.wait_for_timeout(3000)
    page.screenshot(path=folder / f"run_{width}_dark.png", full_page=True)
    page.evaluate("document.body.classList.remove('dark-mode')")
    page.screenshot(path=folder / f"run_{width}_light.png", full_page=True)


def terminal(folder: Path, columns: int) -> str:
    """Train on a terminal of so many columns, and return it as an SVG."""
    tmux = ["tmux", "-L", f"lockstep{columns}"]
    command = shlex.join([sys.executable, TRAIN, *SHORT])
    size = ["-x", str(columns), "-y", "34"]
    subprocess.run(
        [*tmux, "new-session", "-d", *size, "-c", str(folder), f"{command}; sleep 1000"], check=True
    )
    try:
        text = ""
        while "predict " not in text:
            time.sleep(1)
            capture = subprocess.run(
                [*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True, text=True
            )
            text = capture.stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    drawn = Console(
        record=True, width=columns, file=io.StringIO(), legacy_windows=False, force_terminal=True
    )
    drawn.print(Text.from_ansi(text.rstrip()), soft_wrap=True)
    return drawn.export_svg(title="python train.py " + " ".join(SHORT))


def chromium() -> str:
    """Return the path of a browser. Raises FileNotFoundError where there is none."""
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        raise FileNotFoundError(
            "There is no chromium here: tests/support/chromium.sh installs one."
        )
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]).resolve())

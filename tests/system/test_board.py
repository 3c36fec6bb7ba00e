"""The Training tab answers what is in the folders, changes nothing but STOP, and that for its own page alone."""

import argparse
import hashlib
import http.client
import itertools
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from werkzeug.test import Client

from lockstep.board import command, guard, plugin
from lockstep.runs import discovery
from lockstep.runs.files import write_json
from lockstep.runs.folder import SWEEP, RunFolder
from tests.support.boards import BASE, board, running, save_checkpoint, told, without_rights, write_rows, write_run
from tests.support.harness import PATIENCE_S, ROOT, environ, wait_until
from tests.support.trainings import children_of

LOCAL = "http://localhost:6006"
JSON = "application/json"


def why_off(client: Client, base_url: str = LOCAL) -> str:
    return told(client.get(f"{BASE}/control", base_url=base_url))["reason"]


def listed(client: Client) -> dict[str, dict[str, Any]]:
    return {facts["run"]: facts for facts in told(client.get(f"{BASE}/runs", base_url=LOCAL))["runs"]}


def stop(client: Client, run: Any, base_url: str = LOCAL, **changes: Any) -> Any:
    """What the button of the page does, but for `changes`."""
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": base_url}
    headers |= changes.pop("headers", {})
    options = {"data": json.dumps({"run": run}), "content_type": JSON, "method": "POST", **changes}
    return client.open(f"{BASE}/stop", base_url=base_url, headers=headers, **options)


@pytest.fixture
def live(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "live")


@pytest.fixture
def client(live: RunFolder) -> Client:
    return board(live.path.parent)


def id_of(client: Client, name: str = "live") -> str:
    return listed(client)[name]["id"]


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_the_page_stops_a_live_run_by_its_stop_file(client: Client, live: RunFolder) -> None:
    answer = stop(client, id_of(client))
    assert answer.status_code == 200
    assert told(answer)["message"] == "Asked live to stop; it saves a checkpoint first."
    assert live.stop_reason() == "Training tab of TensorBoard"
    assert listed(client)["live"]["state"] == "stopping"


def test_a_second_stop_keeps_the_first_reason(client: Client, live: RunFolder) -> None:
    live.request_stop("by hand")
    assert stop(client, id_of(client)).status_code == 200
    assert live.stop_reason() == "by hand"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"method": "GET", "data": None}, 405),
        ({"method": "PUT"}, 405),
        ({"method": "DELETE"}, 405),
        ({"method": "OPTIONS"}, 405),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
        ({"content_type": None}, 415),
        ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
        ({"headers": {"Sec-Fetch-Site": "same-site"}}, 403),
        ({"headers": {"Sec-Fetch-Site": "none"}}, 403),
        ({"headers": {"Origin": "http://localhost:6007"}}, 403),
        ({"headers": {"Origin": "https://attacker.example"}}, 403),
        ({"headers": {"Origin": "null"}}, 403),
        ({"headers": {"Origin": "http://[::1"}}, 403),
        ({"base_url": "http://attacker.example:6006"}, 403),
        ({"base_url": "http://localhost.attacker.example:6006"}, 403),
        ({"base_url": "http://192.168.1.2:6006"}, 403),
        ({"data": ""}, 413),
        ({"data": json.dumps({"run": "x" * 1024})}, 413),
        ({"data": "[" * 1024}, 400),
        ({"data": "{}"}, 400),
        ({"data": "run"}, 400),
        ({"data": b"\xff"}, 400),
    ],
    ids=str,
)
def test_nothing_else_stops_a_run(client: Client, live: RunFolder, changes: dict[str, Any], code: int) -> None:
    answer = stop(client, id_of(client), **changes)
    assert answer.status_code == code
    assert told(answer)["message"]
    assert not live.stop_flag.exists()
    if code == 405:
        assert answer.headers["Allow"] == "POST"
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("run", ["live", "../live", "/etc", "0" * 16, "", None, 1, ["x"], {"id": "x"}], ids=str)
def test_a_run_is_named_by_its_id_alone(client: Client, live: RunFolder, run: Any) -> None:
    assert stop(client, run).status_code == 404
    assert not live.stop_flag.exists()


def test_an_id_tells_nothing_of_the_path(client: Client) -> None:
    assert re.fullmatch("[0-9a-f]{16}", id_of(client))


UNKNOWN = ("http://attacker.example:6006", "http://10.0.0.1:6006", "http://LOCALHOST.x:6006")


@pytest.mark.parametrize("url", UNKNOWN)
@pytest.mark.parametrize("address", ["runs", "run?id=ID", "config?id=ID", "control", "stop"])
def test_nothing_is_told_under_unknown_host_names(client: Client, url: str, address: str) -> None:
    path = f"{BASE}/{address.replace('ID', id_of(client))}"
    for method in ("GET", "HEAD", "POST"):
        answer = client.open(path, method=method, base_url=url)
        assert answer.status_code == 403
        if method != "HEAD":
            assert list(told(answer)) == ["message"]
            assert "--training_hosts" in told(answer)["message"]


def test_other_sites_are_told_that_stop_is_off(client: Client) -> None:
    assert why_off(client) == ""
    answer = told(client.get(f"{BASE}/control", base_url=LOCAL, headers={"Sec-Fetch-Site": "cross-site"}))
    assert answer["reason"] == "A page of another site asked."


@pytest.mark.parametrize(
    "url", ["http://localhost:6006", "http://127.0.0.1:1", "http://[::1]:6006", "http://LOCALHOST"]
)
def test_loopback_names_are_known(client: Client, live: RunFolder, url: str) -> None:
    assert stop(client, id_of(client), base_url=url).status_code == 200
    assert live.stop_flag.exists()


def test_more_host_names_can_be_allowed(live: RunFolder) -> None:
    client = board(live.path.parent, "--training_hosts=gpu7.example.org, GPU8")
    for name in ("gpu7.example.org", "gpu8"):
        assert why_off(client, f"http://{name}:6006") == ""
    assert client.get(f"{BASE}/runs", base_url="http://gpu8:6006").status_code == 200
    assert client.get(f"{BASE}/runs", base_url="http://gpu9:6006").status_code == 403
    assert stop(client, id_of(client), base_url="http://gpu8:6006").status_code == 200


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ((), ("localhost",)),
        (("--host=192.168.1.2",), ("localhost", "192.168.1.2")),
        (("--host=gpu7.example.org",), ("localhost", "gpu7.example.org")),
        (("--bind_all",), ("localhost", "192.168.1.2", "10.0.0.1", "[fe80::1]", socket.gethostname())),
        (("--host=0.0.0.0",), ("localhost", "192.168.1.2", "10.0.0.1", "[fe80::1]", socket.gethostname())),
    ],
    ids=str,
)
def test_a_board_for_others_is_read_by_the_names_of_its_machine(
    live: RunFolder, flags: tuple[str, ...], names: tuple[str, ...]
) -> None:
    client = board(live.path.parent, *flags)
    tried = ("localhost", "192.168.1.2", "10.0.0.1", "[fe80::1]", socket.gethostname(), "gpu7.example.org", "a.example")
    answers = {name: client.get(f"{BASE}/runs", base_url=f"http://{name}:6006").status_code for name in tried}
    assert answers == {name: 200 if name in names else 403 for name in tried}


@pytest.mark.parametrize("flag", [None, "--training_control=off", "--training_control=on"], ids=str)
def test_plain_tensorboard_which_has_no_login_stops_nothing_unless_told_to(live: RunFolder, flag: str | None) -> None:
    client = board(live.path.parent, *[flag] if flag else [], control=None)
    is_on = flag == "--training_control=on"
    assert ("lockstep board" in why_off(client)) != is_on
    assert stop(client, id_of(client)).status_code == (200 if is_on else 403)
    assert live.stop_flag.exists() == is_on


@pytest.mark.parametrize("state", ["stopped", "finished", "failed", "broken", None])
def test_a_run_that_has_ended_is_not_stopped(tmp_path: Path, state: str | None) -> None:
    folder = write_run(tmp_path / "ended", state)
    client = board(tmp_path)
    answer = stop(client, id_of(client, "ended"))
    assert answer.status_code == 409
    assert told(answer)["message"].startswith("ended is not running: ")
    assert not folder.stop_flag.exists()


def test_a_run_that_ended_since_the_last_look_is_not_stopped(client: Client, live: RunFolder) -> None:
    key = id_of(client)
    live.update_status(state="finished")
    assert stop(client, key).status_code == 409


def test_a_killed_run_is_not_stopped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "killed", host=socket.gethostname())
    client = board(tmp_path)
    assert listed(client)["killed"]["state"] == "no signal"
    assert stop(client, id_of(client, "killed")).status_code == 409
    assert not folder.stop_flag.exists()


def test_a_run_without_a_status_is_stopped_too(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "early", None)
    client = board(tmp_path)
    with folder.lock():
        assert listed(client)["early"]["state"] == "starting"
        assert stop(client, id_of(client, "early")).status_code == 200
        assert listed(client)["early"]["state"] == "stopping"
    assert folder.stop_flag.exists()


def test_stop_searches_anew(client: Client, live: RunFolder) -> None:
    ids = {name: hashlib.sha256(name.encode()).hexdigest()[:16] for name in ("live", "late", "linked")}
    assert id_of(client) == ids["live"]
    late = write_run(live.path.parent / "late")
    assert stop(client, ids["late"]).status_code == 200
    assert late.stop_flag.exists()
    live.path.rename(live.path.parent.parent / f"{live.path.parent.name}-moved")
    live.path.symlink_to(live.path.parent.parent / f"{live.path.parent.name}-moved")
    assert stop(client, ids["live"]).status_code == 404
    assert not live.stop_flag.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside" / "run")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside.path.parent)
    (root / "run").symlink_to(outside.path)
    trap = write_run(root / "trap")
    trap.stop_flag.symlink_to(tmp_path / "target")
    (trap.path / "metrics.csv").symlink_to("/etc/passwd")
    trap.config.unlink()
    trap.config.symlink_to("/etc/passwd")
    assert listed(board(root)) == {}
    trap.config.unlink()
    trap.config.write_text("")
    client = board(root)
    assert list(listed(client)) == ["trap"]
    assert told(client.get(f"{BASE}/run?id={id_of(client, 'trap')}"))["rows"] == []
    stop(client, id_of(client, "trap"))
    assert not (tmp_path / "target").exists()


def test_a_folder_that_may_not_be_written_is_said_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as root:  # not tmp_path, which only its owner may enter
        folder = write_run(Path(root) / "run")
        Path(root).chmod(0o755)
        folder.path.chmod(0o555)
        client = board(Path(root))
        key = id_of(client, "run")
        with without_rights():
            answer = stop(client, key)
        assert answer.status_code == 403
        assert told(answer)["message"].startswith("run cannot be stopped from here: belongs to ")
        folder.path.chmod(0o755)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_reading_changes_nothing(client: Client, live: RunFolder) -> None:
    write_rows(live, 3)

    def tree() -> list[Any]:
        paths = sorted(live.path.parent.rglob("*"))
        return [(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths]

    before = tree()
    key = id_of(client)
    for address in ("runs", f"run?id={key}", f"config?id={key}", "control", "index.js", "stop"):
        client.get(f"{BASE}/{address}", base_url=LOCAL)
        client.head(f"{BASE}/{address}", base_url=LOCAL)
    assert tree() == before


@pytest.mark.parametrize("address", ["runs", "run", "config", "control"])
def test_what_reads_is_not_posted_to(client: Client, address: str) -> None:
    answer = client.post(f"{BASE}/{address}", base_url=LOCAL)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET"


def test_only_known_fields_of_the_right_type_are_told(tmp_path: Path) -> None:
    text = "<img src=x onerror=alert(1)>"
    odd = {"secret": "x", "percent": "12", "step": True, "epoch": [1], "device": text, "host": 5, "reason": "r" * 900}
    write_run(tmp_path / "odd", **odd, metrics={"val/loss": 0.5, "bad": text, "list": [1]})
    facts = listed(board(tmp_path))["odd"]
    assert set(facts) == {"id", "run", "metrics", "overrides", "state", "started", "updated", "device", "reason"}
    assert facts["device"] == text
    assert facts["metrics"] == {"val/loss": 0.5}
    assert facts["reason"] == "r" * 500


@pytest.mark.parametrize(
    "content",
    [
        b"garbage", b"", b"[]", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b'{"state": "new"}', b'{"state": ["x"]}',
        b'{"state": {}}', b'{"state": null}',
    ],
    ids=lambda content: str(content[:30]),
)  # fmt: skip
def test_a_broken_run_is_shown_as_such_beside_the_others(client: Client, live: RunFolder, content: bytes) -> None:
    broken = write_run(live.path.parent / "broken", None)
    (broken.path / "status.json").write_bytes(content)
    (broken.path / "metrics.csv").write_bytes(content)
    (broken.path / "run.json").write_bytes(content)
    found = listed(client)
    assert found["live"]["state"] == "training"
    assert found["broken"]["state"] == "broken"
    assert "status.json" in found["broken"]["reason"]
    assert told(client.get(f"{BASE}/run?id={found['broken']['id']}"))["resume"] is None


def test_a_number_beyond_all_floats_hides_no_other_run(client: Client, live: RunFolder) -> None:
    odd = write_run(live.path.parent / "odd", None)
    (odd.path / "status.json").write_text('{"state": "training", "updated": 1' + "0" * 400 + "}")
    found = listed(client)
    assert found["live"]["state"] == "training"
    assert "updated" not in found["odd"]


def test_a_pipe_is_not_waited_for(client: Client, live: RunFolder) -> None:
    for name in ("status.json", "metrics.csv", "run.json"):
        (live.path / name).unlink(missing_ok=True)
        os.mkfifo(live.path / name)
    assert listed(client)["live"]["state"] == "broken"
    assert told(client.get(f"{BASE}/run?id={id_of(client)}"))["rows"] == []


def test_rows_are_thinned_and_the_last_is_kept(client: Client, live: RunFolder) -> None:
    write_rows(live, 5000)
    rows = told(client.get(f"{BASE}/run?id={id_of(client)}"))["rows"]
    assert 1000 < len(rows) <= plugin.MAX_ROWS
    assert rows[-1]["epoch"] == 5000
    assert {b["epoch"] - a["epoch"] for a, b in itertools.pairwise(rows)} == {3}


@pytest.mark.parametrize(
    "secret", ["notify:\n  command: null\n  url: https://h/token\n", "notify: {url: https://h/token}\n"]
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_what_notifications_are_sent_with_is_not_shown(
    client: Client, live: RunFolder, secret: str, place: str
) -> None:
    before = "" if place == "first" else "seed: 0\naugment:\n  api_token: a\n    token\n  flip: false\n"
    after = "" if place == "last" else "resume: null\n"
    live.config.write_text(before + secret + after)
    text = told(client.get(f"{BASE}/config?id={id_of(client)}"))["text"]
    assert "token\n" not in text.replace("api_token", "")
    assert "url: '***'\n" in text
    assert yaml.safe_load(text).keys() == yaml.safe_load(before + secret + after).keys()


def test_a_config_that_is_no_configuration_is_not_shown(client: Client, live: RunFolder) -> None:
    address = f"{BASE}/config?id={id_of(client)}"
    assert told(client.get(address)) == {"text": "seed: 0\n"}
    bomb = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]\n" for i in range(12))
    for text in (bomb, "a: [", "a: " + "[" * 5000):
        live.config.write_text(text)
        assert client.get(address).status_code == 404


@pytest.mark.parametrize("key", ["", "live", "../live", "%2e%2e%2flive", "0" * 16])
def test_unknown_runs_are_not_shown(client: Client, key: str) -> None:
    for name in ("run", "config"):
        assert client.get(f"{BASE}/{name}?id={key}").status_code == 404


def test_curves_are_found_in_the_logs_of_the_run(tmp_path: Path) -> None:
    older = write_run(tmp_path / "day" / "older")
    older.old_curves.mkdir()
    write_run(tmp_path / "day" / "run")

    def curves(root: Path, name: str) -> dict[str, str]:
        client = board(root)
        return told(client.get(f"{BASE}/run?id={id_of(client, name)}"))["curves"]

    assert curves(tmp_path, "day/run") == {"run": "day/run", "tag": "loss/step"}
    assert curves(tmp_path / "day" / "run", ".") == {"run": ".", "tag": "loss/step"}
    assert curves(tmp_path, "day/older") == {"run": "day/older/tensorboard", "tag": "train_step/loss"}


def test_trials_name_their_sweep_unless_it_is_all_there_is(tmp_path: Path) -> None:
    write_run(tmp_path / "day" / "sweep" / "0")
    write_run(tmp_path / "day" / "alone")
    (tmp_path / "day" / "sweep" / SWEEP).write_text("{}")
    found = listed(board(tmp_path))
    assert found["day/sweep/0"]["sweep"] == "day/sweep"
    assert "sweep" not in found["day/alone"]
    assert "sweep" not in listed(board(tmp_path / "day" / "sweep"))["0"]


GOOD = {"step": 30, "num_classes": 2, "classes": ["cat", "dog"], "counts": [[8, 2], [0, 5]]}


def test_mistakes_of_the_test_are_told_before_those_of_a_validation(client: Client, live: RunFolder) -> None:
    address = f"{BASE}/run?id={id_of(client)}"
    assert told(client.get(address))["confusion"] is None
    live.pictures.mkdir()
    for split, step in (("val", 20), ("test", 30)):
        write_json(live.confusion(split), {**GOOD, "step": step})
        assert told(client.get(address))["confusion"] == {**GOOD, "step": step, "split": split}


@pytest.mark.parametrize(
    ("state", "is_saved", "is_told"),
    [
        ("stopped", True, True),
        ("failed", True, True),
        ("failed", False, False),
        ("finished", True, False),
        ("training", True, False),
        (None, True, False),
    ],
)
def test_a_run_that_can_go_on_says_how(tmp_path: Path, state: str | None, is_saved: bool, is_told: bool) -> None:
    folder = write_run(tmp_path / "run", state)
    if is_saved:
        save_checkpoint(folder)
    client = board(tmp_path)
    found = told(client.get(f"{BASE}/run?id={id_of(client, 'run')}"))["resume"]
    assert found == (f"python train.py resume={folder.path}" if is_told else None)


@pytest.mark.parametrize("name", ["plain", "a b", "it's", 'a"b', "a\\", 'a\\"b', "lr=0.1,0.2", "$(reboot)", "é", "[x"])
def test_the_command_names_its_run_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save_checkpoint(write_run(tmp_path / "outputs" / name, "stopped"))
    monkeypatch.chdir(tmp_path)
    client = board(Path("outputs"))
    text = told(client.get(f"{BASE}/run?id={id_of(client, name)}"))["resume"]
    program, verb, override = shlex.split(text)
    assert (program, verb) == ("lockstep", "train")
    assert OverridesParser.create().parse_override(override).value() == f"outputs/{name}"


def test_a_name_that_is_no_text_can_be_told(tmp_path: Path) -> None:
    write_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    assert list(listed(board(tmp_path))) == ["\udcff"]


def test_a_thousand_runs_are_listed_in_a_moment(
    tmp_path: Path, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    for number in range(1000):
        live = number % 100 == 0
        folder = write_run(tmp_path / f"{number // 100}" / f"{number}", "training" if live else "finished", step=number)
        folder.note(overrides=[f"optimizer.lr={number}", "model.width=8"])
        folder.curves("val").mkdir()
        folder.checkpoints.mkdir()
    client = board(tmp_path)

    def poll() -> float:
        started = time.perf_counter()
        assert client.get(f"{BASE}/runs", headers={"Accept-Encoding": "gzip"}).status_code == 200
        return time.perf_counter() - started

    first, *others = (poll() for _ in range(6))
    really_look = discovery.look
    monkeypatch.setattr(discovery, "look", lambda found: looked_at.append(found.name) or really_look(found))
    poll()
    assert len(looked_at) == 10  # those that live
    figure(f"first look {1000 * first:.0f} ms, the next {1000 * min(others):.0f} to {1000 * max(others):.0f} ms")


# -- what is shipped ---------------------------------------------------------------------------------------------------


def test_the_files_of_the_page_are_served_and_no_others(client: Client) -> None:
    for path in plugin.STATIC.iterdir():
        answer = client.get(f"{BASE}/{path.name}", base_url=LOCAL)
        assert answer.status_code == 200
        assert answer.get_data() == path.read_bytes()
        assert answer.mimetype == plugin.TYPES[path.suffix]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    for address in ("plugin.py", "../plugin.py", "static/index.js", "%2e%2e/guard.py"):
        assert client.get(f"{BASE}/{address}", base_url=LOCAL).status_code == 404


def test_the_page_sets_text_only_and_loads_nothing_from_outside() -> None:
    for path in plugin.STATIC.iterdir():
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|srcdoc", text)
        assert re.findall(r"https?://[^'\" ]+", text) in ([], ["http://www.w3.org/2000/svg"])
        assert "@import" not in text


# how colours look to people who lack one kind of cone: Machado, Oliveira and Fernandes (2009), severity 1, linear RGB
VISION = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green cones": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "no blue cones": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}


def linear(colour: str) -> tuple[float, ...]:
    """Linear sRGB of `#rrggbb` or `#rgb`."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = (int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4))
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def luminance(rgb: tuple[float, ...]) -> float:
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def lab(rgb: tuple[float, ...]) -> tuple[float, ...]:
    """CIELAB for the white of a screen (D65)."""
    red, green, blue = (min(max(part, 0.0), 1.0) for part in rgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    a, b, c = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (x, luminance((red, green, blue)), z)
    )
    return 116 * b - 16, 500 * (a - b), 200 * (b - c)


@pytest.mark.parametrize("theme", [":root", ":root.dark"])
def test_lines_of_runs_can_be_told_apart_by_everybody(theme: str, figure: Callable[[str], None]) -> None:
    """WCAG 2.2 asks for a contrast of 3 of what is drawn; a distance of 10 in CIELAB is plain to see side by side."""
    style = (plugin.STATIC / "style.css").read_text()
    block = re.search(rf"^{re.escape(theme)} {{(.*?)^}}", style, re.MULTILINE | re.DOTALL)
    assert block is not None
    values = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", block[1]))
    colours = [linear(values[f"line-{place}"]) for place in range(6)]
    back = luminance(linear(values["card"]))
    for colour in colours:
        darker, lighter = sorted((luminance(colour), back))
        assert (lighter + 0.05) / (darker + 0.05) >= 3
    distances = {}
    for name, matrix in VISION.items():
        seen = [
            lab(tuple(sum(a * b for a, b in zip(row, colour, strict=True)) for row in matrix)) for colour in colours
        ]
        distances[name] = min(math.dist(one, other) for one, other in itertools.combinations(seen, 2))
    figure(f"{theme}: least distance " + ", ".join(f"{name} {value:.0f}" for name, value in distances.items()))
    assert min(distances.values()) >= 10


def test_the_package_ships_the_page_and_tells_tensorboard_of_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, name = project["project"]["entry-points"]["tensorboard_plugins"]["lockstep"].partition(":")
    assert getattr(sys.modules[module], name) is plugin.TrainingLoader
    assert project["tool"]["setuptools"]["package-data"]["lockstep.board"] == ["static/*"]


def test_the_tab_is_there_for_folders_of_this_machine_only(tmp_path: Path) -> None:
    listing = told(board(tmp_path).get("/data/plugins_listing"))[plugin.NAME]
    assert (listing["tab_name"], listing["enabled"]) == ("Training", True)
    assert plugin.NAME not in told(board("gs://bucket").get("/data/plugins_listing"))


def test_the_plugin_brings_nothing_that_tensorboard_does_not_bring() -> None:
    code = (
        "import sys, tensorboard.backend.http_util, tensorboard.plugins.base_plugin, werkzeug.wrappers;"
        "before = set(sys.modules); import lockstep.board.plugin;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ())
    assert done.stdout == "['lazy_loader', 'lockstep']\n"


def test_the_search_for_a_browser_says_why_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    script = [shutil.which("bash") or "bash", str(ROOT / "tests" / "support" / "chromium.sh")]
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 3
    assert "no chromium, chromium-browser or google-chrome here" in done.stderr
    (tmp_path / "google-chrome").symlink_to(tmp_path / "id")
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/google-chrome\n")


def with_token(client: Client) -> Client:
    """The same, as `lockstep board` serves it."""
    flags = argparse.Namespace(training_hosts="", bind_all=False, host=None)
    return Client(command._for_known(client.application, guard.Hosts(flags), "secret"))


PAGES = ("/", "/data/plugins_listing", f"{BASE}/runs", f"{BASE}/index.js", "/none")


@pytest.mark.parametrize(
    ("query", "cookie"),
    [
        ("", ""),
        ("?token=", "lockstep-board-6006="),
        ("?token=guess", "lockstep-board-6006=guess"),
        ("?token=%ff", "lockstep-board-6006=\xff"),
        ("?other=secret", "lockstep-board-6007=secret"),
        ("?token=secre", "secret"),
    ],
)
def test_nothing_is_told_without_the_token(client: Client, live: RunFolder, query: str, cookie: str) -> None:
    key = id_of(client)
    client = with_token(client)
    for method, path in (*itertools.product(("GET", "HEAD", "POST", "OPTIONS"), PAGES), ("POST", f"{BASE}/stop")):
        headers = {"Cookie": cookie, "Content-Type": JSON}
        body = json.dumps({"run": key})
        answer = client.open(path + query, method=method, base_url=LOCAL, headers=headers, data=body)
        assert (path, answer.status_code, answer.mimetype) == (path, 403, "text/plain")
        assert "Set-Cookie" not in answer.headers
        if method != "HEAD":
            (line,) = answer.get_data(as_text=True).splitlines()
            assert "in the terminal in which lockstep board was started" in line
    assert not live.stop_flag.exists()


def test_the_token_is_asked_for_once_and_compared_in_constant_time(
    client: Client, live: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    monkeypatch.setattr(command.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    key = id_of(client)
    client = with_token(client)
    entered = client.get("/?token=secret", base_url=LOCAL)
    assert (entered.status_code, entered.headers["Location"]) == (302, "./")
    assert entered.headers["Set-Cookie"] == "lockstep-board-6006=secret; Path=/; HttpOnly; SameSite=Strict"
    assert compared == [(b"secret", b"secret")]
    assert [client.get(path, base_url=LOCAL).status_code for path in PAGES] == [200, 200, 200, 200, 404]
    assert stop(client, key, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert stop(client, key).status_code == 200
    assert live.stop_flag.exists()


def test_pages_of_other_sites_cannot_frame_the_board(client: Client) -> None:
    framed = Client(command._unframed(client.application))
    policies = framed.get("/", base_url=LOCAL).headers.getlist("Content-Security-Policy")
    assert "frame-ancestors 'self'" in policies
    assert any("script-src" in policy for policy in policies)


# -- lockstep board ----------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_board_says_where_it_is_and_ends_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "outputs").mkdir()
    with running(tmp_path) as started:
        address = started.address()
        assert re.fullmatch(rf"http://localhost:\d+/\?token=[\w-]{{43}}#{plugin.NAME}", address)
        assert started.end(number) == 0
        assert started.output.read_text() == f"Training tab: {address}  (Ctrl-C ends it)\n"
        assert started.errors.read_text() in ("", "TensorBoard caught SIGTERM; exiting...\n")


@pytest.mark.processes
def test_a_board_is_for_those_who_have_its_token_and_know_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the tabs of TensorBoard itself, whose data has no other guard; nor does another way lead to the data."""
    write_run(tmp_path / "run")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with running(tmp_path, "--logdir", ".", "--training_hosts", "gpu7") as started:
        address = urlsplit(started.address())
        port, token = address.port, address.query.removeprefix("token=")
        assert port is not None

        def ask(path: str, host: str, cookie: str = "") -> tuple[int, str]:
            connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE_S)
            connection.request("GET", path, headers={"Host": f"{host}:{port}", "Cookie": cookie})
            answer = connection.getresponse()
            said = answer.getheader("Set-Cookie") or answer.read().decode(errors="replace")
            connection.close()
            return answer.status, said

        code, said = ask(f"/?{address.query}", "localhost")
        cookie = said.partition(";")[0]
        assert (code, cookie) == (302, f"lockstep-board-{port}={token}")
        for path in ("/", "/data/runs", "/data/environment", "/data/plugin/scalars/tags", f"{BASE}/runs"):
            assert ask(path, "localhost")[0] == 403
            for host, code in (("localhost", 200), ("gpu7", 200), ("attacker.example", 403), ("gpu7.attacker", 403)):
                given, said = ask(path, host, cookie)
                assert (path, host, given) == (path, host, code)
                assert ("--training_hosts" in said) == (code == 403)
        assert token.encode() not in Path(f"/proc/{started.process.pid}/cmdline").read_bytes()
        assert children_of(started.process.pid) == []  # a server of TensorBoard's data answers everybody
        assert started.errors.read_text() == ""  # nor are requests logged
        assert not (tmp_path / "tmp" / ".tensorboard-info").exists()  # where others may have made a link


@pytest.mark.processes
def test_ctrl_c_while_the_board_starts_is_no_fault(tmp_path: Path) -> None:
    with running(tmp_path, "--logdir", ".") as started:
        maps = Path(f"/proc/{started.process.pid}/maps")
        wait_until(lambda: "grpc" in maps.read_text(), "loads TensorBoard")
        assert started.end() == 0
        assert started.errors.read_text() == ""


@pytest.mark.processes
def test_a_port_in_use_is_passed_over_unless_it_was_asked_for(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 6006))
        except OSError:  # somebody else's TensorBoard does as well
            pass
        else:
            taken.listen()
        with running(tmp_path, "--logdir", ".") as started:
            assert int(re.search(r":(\d+)/", started.address())[1]) > 6006  # pyright: ignore[reportOptionalSubscript]
        with running(tmp_path, "--logdir", ".", "--port", "6006") as started:
            assert started.process.wait(PATIENCE_S) == 2
            assert started.errors.read_text() == (
                "lockstep: TensorBoard could not bind to port 6006, it was already in use: "
                "choose others by --host and --port.\n"
            )


@pytest.mark.processes
def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with running(tmp_path, "--logdir", "runs") as started:
        assert started.process.wait(PATIENCE_S) == 2
        (line,) = started.errors.read_text().splitlines()
        assert line.startswith("lockstep: runs is not there: ")

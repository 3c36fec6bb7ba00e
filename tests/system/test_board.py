"""The Training tab shows what is in the folders.

It changes only STOP and notes.json, and only for its own page.
"""

import argparse
import hashlib
import http.client
import itertools
import json
import re
import shlex
import socket
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from werkzeug.test import Client

from lockstep.board import command, guard, plugin
from lockstep.runs.files import read_json, write_json
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.sweeps.search import JOURNAL
from tests.support.boards import (
    BASE,
    JSON,
    LOCAL,
    board,
    listed,
    post,
    running,
    told,
    write_run,
    write_trials,
)
from tests.support.harness import PATIENCE_S
from tests.support.trainings import children_of
from tests.support.users import without_rights


def stop(client: Client, run: Any, base_url: str = LOCAL, **changes: Any) -> Any:
    return post(client, "stop", {"run": run}, base_url, **changes)


@pytest.fixture
def live(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "live")


@pytest.fixture
def client(live: RunFolder) -> Client:
    return board(live.path.parent)


def id_of(client: Client, name: str = "live") -> str:
    return listed(client)[name]["id"]


# -- stopping --------------------------------------------------------------------------------------


def test_stop_live_run(client: Client, live: RunFolder) -> None:
    assert stop(client, id_of(client)).status_code == 200
    assert live.stop_reason() == "Training tab of TensorBoard"
    assert listed(client)["live"]["state"] == "stopping"


@pytest.mark.parametrize("address", ["stop", "notes"])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"method": "GET", "data": None}, 405),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
        ({"content_type": None}, 415),
        ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
        ({"headers": {"Origin": "http://localhost:6007"}}, 403),
        ({"headers": {"Origin": "https://attacker.example"}}, 403),
        ({"headers": {"Origin": "null"}}, 403),
        ({"base_url": "http://localhost.attacker.example:6006"}, 403),
        ({"base_url": "http://192.168.1.2:6006"}, 403),
        ({"data": ""}, 413),
        ({"data": json.dumps({"run": "x" * 16_384})}, 413),
        ({"data": "{}"}, 400),
        ({"data": b"\xff"}, 400),
        ({"data": json.dumps({"run": "../live", "note": "", "tags": []})}, 404),
        ({"data": json.dumps({"run": ["x"], "note": "", "tags": []})}, 404),
    ],
    ids=str,
)
def test_post_refused(
    client: Client, live: RunFolder, address: str, changes: dict[str, Any], code: int
) -> None:
    answer = post(client, address, {"run": id_of(client), "note": "mine", "tags": []}, **changes)
    assert answer.status_code == code
    assert told(answer)["message"]
    assert not live.stop_flag.exists()
    assert not live.notes.exists()
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("address", ["runs", "run?id=ID", "sweep", "control", "stop", "notes"])
def test_unknown_hosts(client: Client, address: str) -> None:
    path = f"{BASE}/{address.replace('ID', id_of(client))}"
    for method, url in itertools.product(
        ("GET", "POST"), ("http://attacker.example:6006", "http://10.0.0.1:6006")
    ):
        answer = client.open(path, method=method, base_url=url)
        assert answer.status_code == 403
        assert list(told(answer)) == ["message"]


MACHINE = ("localhost", "192.168.1.2", "10.0.0.1", "[fe80::1]", socket.gethostname())


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ((), ("localhost", "127.0.0.1", "[::1]", "LOCALHOST")),
        (("--host=192.168.1.2",), ("localhost", "192.168.1.2")),
        (("--host=gpu7.example.org",), ("localhost", "gpu7.example.org")),
        (("--bind_all",), MACHINE),
        (("--host=0.0.0.0",), MACHINE),
        (("--training-hosts=gpu7.example.org, GPU8",), ("localhost", "gpu7.example.org", "gpu8")),
        (("--training_hosts=gpu8",), ("localhost", "gpu8")),  # as TensorBoard writes it
    ],
    ids=str,
)
def test_hosts(live: RunFolder, flags: tuple[str, ...], names: tuple[str, ...]) -> None:
    client = board(live.path.parent, *flags)
    for name in {
        *MACHINE,
        *names,
        "gpu7.example.org",
        "gpu8",
        "attacker.example",
        "localhost.attacker.example",
    }:
        code = client.get(f"{BASE}/runs", base_url=f"http://{name}:6006").status_code
        assert (name, code) == (name, 200 if name in names else 403)


@pytest.mark.parametrize("flag", [None, "--training_control=off", "--training_control=on"], ids=str)
def test_stop_in_plain_tensorboard(live: RunFolder, flag: str | None) -> None:
    client = board(live.path.parent, *[flag] if flag else [], control=None)
    is_on = flag == "--training_control=on"
    reason = told(client.get(f"{BASE}/control", base_url=LOCAL))["reason"]
    assert ("lockstep board" in reason) != is_on
    assert stop(client, id_of(client)).status_code == (200 if is_on else 403)
    assert live.stop_flag.exists() == is_on


@pytest.mark.parametrize("state", ["stopped", "failed", "broken", "killed", None])
def test_stop_ended_run(tmp_path: Path, state: str | None) -> None:
    if state == "killed":
        folder = write_run(tmp_path / "run", host=socket.gethostname())
    else:
        folder = write_run(tmp_path / "run", state)
    client = board(tmp_path)
    assert stop(client, id_of(client, "run")).status_code == 409
    assert not folder.stop_flag.exists()


def test_stop_searches_again(client: Client, live: RunFolder) -> None:
    """A run may have ended since the last look, and another one may have begun."""
    key = id_of(client)
    live.update_status(state="finished")
    assert stop(client, key).status_code == 409
    late = write_run(live.path.parent / "late")
    assert stop(client, hashlib.sha256(b"late").hexdigest()[:16]).status_code == 200
    assert late.stop_flag.exists()


def test_stop_run_of_another_user() -> None:
    with tempfile.TemporaryDirectory() as root:  # not tmp_path, which only its owner may enter
        folder = write_run(Path(root) / "run")
        Path(root).chmod(0o755)
        folder.path.chmod(0o555)
        client = board(Path(root))
        key = id_of(client, "run")
        with without_rights():
            assert stop(client, key).status_code == 403
        folder.path.chmod(0o755)


def test_note_saved(client: Client, live: RunFolder) -> None:
    live.update_status(state="finished")
    body = {"run": id_of(client), "note": "läuft " * 1000, "tags": ["keep", "paper"]}
    assert post(client, "notes", body).status_code == 200
    assert read_json(live.notes) == {"note": body["note"], "tags": body["tags"]}
    assert listed(client)["live"].items() >= {"note": body["note"], "tags": body["tags"]}.items()
    for wrong in ({"note": 1}, {"tags": "keep"}, {"tags": [1]}):
        assert post(client, "notes", {**body, **wrong}).status_code == 400


def test_note_changed_elsewhere(client: Client, live: RunFolder) -> None:
    """A note replaces only the version that the page has read."""
    body = {"run": id_of(client), "note": "mine", "tags": []}
    write_json(live.notes, {"note": "by another", "tags": []})
    assert post(client, "notes", body).status_code == 409
    body["noted"] = listed(client)["live"]["noted"]
    assert post(client, "notes", body).status_code == 200
    assert post(client, "notes", {**body, "note": "late"}).status_code == 409
    assert read_json(live.notes)["note"] == "mine"


@pytest.mark.parametrize(
    ("text", "is_link"),
    [
        ("{garbage", False),
        ('{"note": 3, "tags": "keep"}', False),
        ('{"note": ["x"], "tags": [1, null]}', False),
        (f'{{"note": "{"x" * 100_000}"}}', False),
        ('{"note": "secret"}', True),
    ],
    ids=["garbage", "numbers", "lists", "long", "link"],
)
def test_note_of_others(
    client: Client, live: RunFolder, tmp_path: Path, text: str, is_link: bool
) -> None:
    """What is not a note is neither shown nor replaced, and a link is not followed."""
    file = tmp_path / "secret.json" if is_link else live.notes
    file.write_text(text)
    if is_link:
        live.notes.symlink_to(file)
    assert not {"note", "tags"} & listed(client)["live"].keys()
    assert (
        post(client, "notes", {"run": id_of(client), "note": "mine", "tags": []}).status_code == 409
    )
    assert file.read_text() == text


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("journal", ["", "[" * 100_000, '{"op_code": 4}', "5"])
def test_importance_of_damaged_journal(tmp_path: Path, journal: str) -> None:
    """The importance of a search: tests/unit/test_importance.py."""
    write_trials(tmp_path / "search", {("model.width=8",): 0.5})
    (tmp_path / "search" / JOURNAL).write_text(f"{journal}\n")
    assert board(tmp_path).get(f"{BASE}/importance?name=search").status_code == 404


def test_unknown_address(client: Client) -> None:
    for key in ("", "live", "../live", "0" * 16):
        assert client.get(f"{BASE}/run?id={key}").status_code == 404
    for address in ("plugin.py", "../plugin.py", "static/index.js", "%2e%2e/guard.py"):
        assert client.get(f"{BASE}/{address}", base_url=LOCAL).status_code == 404


def test_sweep(tmp_path: Path) -> None:
    settings = [(lr, seed) for lr in (0.05, 0.1) for seed in (0, 1)]
    accuracies = {
        (f"optimizer.lr={lr}", f"seed={seed}"): 0.8 + lr + seed / 100 for lr, seed in settings
    }
    folders = write_trials(tmp_path / "day" / "sweep", accuracies)
    client = board(tmp_path)
    address = f"{BASE}/sweep?name=day/sweep"
    found = told(client.get(address, base_url=LOCAL))
    assert [trial["trial"] for trial in found["trials"]] == [2, 3, 0, 1]
    expected = {
        "id": id_of(client, "day/sweep/3"),
        "settings": {"optimizer.lr": "0.1", "seed": "1"},
    }
    expected |= {
        "state": "finished",
        "epoch": 2,
        "values": {"train/loss": 1.0, "val/accuracy": 0.91},
    }
    assert found["trials"][1].items() >= expected.items()
    assert [group["trials"] for group in found["groups"]] == found["repeated"] == [[2, 3], [0, 1]]
    folders[0].write_summary(folders[0].read_summary() | {"test_accuracy": 0.7})
    changed = {
        trial["trial"]: trial for trial in told(client.get(address, base_url=LOCAL))["trials"]
    }
    assert changed[0]["values"]["test/accuracy"] == 0.7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("new", "new/0/config.yaml"),
        ("broken", SWEEP),
        ("../new", "no longer exists"),
        ("", "no longer exists"),
    ],
)
def test_sweep_errors(tmp_path: Path, name: str, message: str) -> None:
    (write_trials(tmp_path / "new", {("seed=0",): 0.8})[0].config).write_text("seed: 0\n")
    write_run(tmp_path / "broken" / "0")
    (tmp_path / "broken" / SWEEP).write_text("{garbage")
    answer = board(tmp_path).get(f"{BASE}/sweep?name={name}", base_url=LOCAL)
    assert answer.status_code == 404
    assert message in told(answer)["message"]


def test_command_quoted(client: Client, live: RunFolder) -> None:
    live.note(overrides=["optimizer.lr=0.1", "data.root='a b'", "x=$(reboot)"])
    shown = told(client.get(f"{BASE}/run?id={id_of(client)}"))["command"]
    assert shlex.split(shown)[-3:] == ["optimizer.lr=0.1", "data.root='a b'", "x=$(reboot)"]


# -- what is shipped -------------------------------------------------------------------------------


def test_page_text_only() -> None:
    for path in plugin.STATIC.iterdir():
        text = path.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|srcdoc",
            text,
        )
        assert re.findall(r"https?://[^'\" ]+", text) in ([], ["http://www.w3.org/2000/svg"])
        assert "@import" not in text


def with_token(client: Client) -> Client:
    """The same, as `lockstep board` serves it."""
    flags = argparse.Namespace(training_hosts="", bind_all=False, host=None)
    return Client(command._restrict_hosts(client.application, guard.Hosts(flags), "secret"))


PAGES = ("/", "/data/plugins_listing", f"{BASE}/runs", f"{BASE}/index.js", "/none")


@pytest.mark.parametrize(
    ("query", "cookie"),
    [
        ("", ""),
        ("?token=", "lockstep-board-6006="),
        ("?token=%ff", "lockstep-board-6006=\xff"),
        ("?other=secret", "lockstep-board-6007=secret"),
        ("?token=secre", "secret"),
    ],
)
def test_wrong_token(client: Client, live: RunFolder, query: str, cookie: str) -> None:
    key = id_of(client)
    headers = {"Cookie": cookie, "Content-Type": JSON}
    options: dict[str, Any] = {
        "base_url": LOCAL,
        "headers": headers,
        "data": json.dumps({"run": key}),
    }
    client = with_token(client)
    for method, path in (*itertools.product(("GET", "POST"), PAGES), ("POST", f"{BASE}/stop")):
        answer = client.open(path + query, method=method, **options)
        assert (path, answer.status_code, answer.get_data(as_text=True)) == (
            path,
            403,
            f"{command.NO_TOKEN}\n",
        )
        assert "Set-Cookie" not in answer.headers
    assert not live.stop_flag.exists()


def test_token_once(client: Client, live: RunFolder) -> None:
    key = id_of(client)
    client = with_token(client)
    entered = client.get("/?token=secret", base_url=LOCAL)
    assert (entered.status_code, entered.headers["Location"]) == (302, "./")
    assert (
        entered.headers["Set-Cookie"]
        == "lockstep-board-6006=secret; Path=/; HttpOnly; SameSite=Strict"
    )
    assert [client.get(path, base_url=LOCAL).status_code for path in PAGES] == [
        200,
        200,
        200,
        200,
        404,
    ]
    assert stop(client, key, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert stop(client, key).status_code == 200


def test_framed_by_other_site(client: Client) -> None:
    framed = Client(command._forbid_frames(client.application))
    policies = framed.get("/", base_url=LOCAL).headers.getlist("Content-Security-Policy")
    assert "frame-ancestors 'self'" in policies
    assert any("script-src" in policy for policy in policies)


# -- lockstep board --------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.processes
def test_board_token_and_hosts(tmp_path: Path) -> None:
    """The token also guards TensorBoard's tabs, whose data has no other guard.

    No other way leads to the data.
    """
    write_run(tmp_path / "run")
    with running(tmp_path, "--logdir", ".", "--training-hosts", "gpu7") as (process, url):
        assert re.fullmatch(rf"http://localhost:\d+/\?token=[\w-]{{43}}#{plugin.NAME}", url)
        address = urlsplit(url)
        token = address.query.removeprefix("token=")
        cookie = f"lockstep-board-{address.port}={token}"

        def ask(path: str, host: str, cookie: str) -> int:
            connection = http.client.HTTPConnection(address.netloc, timeout=PATIENCE_S)
            connection.request(
                "GET", path, headers={"Host": f"{host}:{address.port}", "Cookie": cookie}
            )
            code = connection.getresponse().status
            connection.close()
            return code

        assert ask(f"/?{address.query}", "localhost", "") == 302
        for path in (
            "/",
            "/data/runs",
            "/data/environment",
            "/data/plugin/scalars/tags",
            f"{BASE}/runs",
        ):
            assert ask(path, "localhost", "") == 403
            assert ask(path, "gpu7", cookie) == 200
            assert ask(path, "attacker.example", cookie) == 403
        assert token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        # a server of TensorBoard's data answers everybody
        assert children_of(process.pid) == []

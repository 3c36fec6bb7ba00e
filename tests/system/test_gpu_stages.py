"""The command for a rented GPU: no stage stops the next one, none outlives its limit, and nothing found is lost."""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import facts, page, runner
from benchmarks.gpu.profiled import in_words
from benchmarks.gpu.runner import EXIT_UNUSABLE
from benchmarks.gpu.stage import Aim, Bench, Done, command
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED
from tests.support.harness import PATIENCE_S, ROOT, environ, wait_until

pytestmark = pytest.mark.processes
COMMAND = """\
import sys
from pathlib import Path
from benchmarks.gpu.runner import Stage, Stopping, run
stages = [Stage(name, float(limit), [sys.executable, "-c", code]) for name, limit, code in {stages!r}]
sys.exit(run(stages, Path({folder!r}), title="it", data=Path("."), budget_s={budget_s}, stopping=Stopping()))
"""
ROW = """\
import json, sys
with open(sys.argv[1], "a") as file:
    file.write(json.dumps({"what": "a number", "result": "1.5", "aim": "<= 2", "is_met": %s}) + "\\n")
"""
PASSES = ROW % "True"
MISSES = ROW % "False"
FAILS = PASSES + "print('before'); sys.exit('the reason')"
# starts a process in a session of its own, as torchrun does, which starts one in another
HANGS = (
    PASSES
    + """
import subprocess, time
from pathlib import Path
sleeps = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
starts = '''
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)
time.sleep(600)
'''
print("hanging", flush=True)
pid = Path(sys.argv[3], "pid")
subprocess.Popen([sys.executable, "-c", starts, sleeps, str(pid)], start_new_session=True)
while not pid.exists() or not pid.read_text():
    time.sleep(0.01)
Path(sys.argv[3], "hangs").touch()
time.sleep(600)
"""
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command with stages (name, limit, code); their folder of data is the temporary one."""

    def started(*stages: tuple[str, float, str], budget_s: float = 300) -> subprocess.Popen[str]:
        code = COMMAND.format(stages=stages, folder=str(tmp_path / "out"), budget_s=budget_s)
        code = code.replace('data=Path(".")', f"data=Path({str(tmp_path)!r})")
        words = [sys.executable, "-c", code]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        commands.append(subprocess.Popen(words, cwd=ROOT, env=environ(), **pipes))
        return commands[-1]

    commands: list[subprocess.Popen[str]] = []
    yield started
    for process in commands:
        process.terminate()  # which ends its stage, too
        process.wait(30)


def results(tmp_path: Path) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in json.loads((tmp_path / "out" / "results.json").read_text())["stages"]}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_stage_that_fails_or_misses_its_aim_does_not_stop_the_next_one(tmp_path: Path, start: Any) -> None:
    process = start(
        ("fails", 60, FAILS), ("misses", 60, MISSES), ("dies", 60, "import os; os.kill(0, 9)"), ("passes", 60, PASSES)
    )
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED, output
    found = results(tmp_path)
    states = {name: (each["state"], each["reason"]) for name, each in found.items()}
    assert states == {
        "fails": ("failed", "the reason"),
        "misses": ("failed", "not met: a number"),
        "dies": ("failed", "code -9, without a word"),
        "passes": ("passed", ""),
    }
    assert [len(each["rows"]) for each in found.values()] == [1, 1, 0, 1], "what a stage found before it failed is kept"
    text = (tmp_path / "out" / "gpu.md").read_text()
    assert "| fails | failed |" in text
    assert "| a number | 1.5 | <= 2 | yes |" in text
    assert "before\nthe reason\n==== fails ended with code 1\n" in (tmp_path / "out" / "logs.txt").read_text()
    assert "a number, 1.5, <= 2, yes" in output


def test_all_passed_is_exit_code_0(tmp_path: Path, start: Any) -> None:
    process = start(("one", 60, PASSES), ("two", 60, "pass"))
    assert (process.communicate(timeout=PATIENCE_S), process.returncode)[1] == 0


def test_a_stage_that_hangs_ends_at_its_limit_with_all_it_started(tmp_path: Path, start: Any) -> None:
    process = start(("hangs", 6, HANGS), ("passes", 60, PASSES))
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED, output
    found = results(tmp_path)
    assert (found["hangs"]["state"], found["hangs"]["reason"]) == ("timed out", "killed after 6 s")
    assert found["passes"]["state"] == "passed"
    assert len(found["hangs"]["rows"]) == 1, "what it found is kept"
    assert "\nhanging\n" in (tmp_path / "out" / "logs.txt").read_text()
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_what_there_is(tmp_path: Path, start: Any, number: signal.Signals) -> None:
    process = start(("passes", 60, PASSES), ("hangs", 300, HANGS), ("never", 60, PASSES))
    wait_until((tmp_path / "hangs").exists, what="the second stage")
    assert results(tmp_path)["hangs"]["state"] == "running", "written before the stage, too"
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_STOPPED, output
    found = results(tmp_path)
    states = {name: (each["state"], each["reason"]) for name, each in found.items()}
    assert states == {"passes": ("passed", ""), "hangs": ("cut", number.name), "never": ("not started", number.name)}
    assert len(found["hangs"]["rows"]) == 1
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_the_budget_cuts_the_last_stage_and_starts_none_that_has_no_time(tmp_path: Path, start: Any) -> None:
    process = start(("passes", 9, PASSES), ("hangs", 12, HANGS), ("never", 9, PASSES), budget_s=6)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_STOPPED, output
    found = results(tmp_path)
    assert {name: each["state"] for name, each in found.items()} == {
        "passes": "passed",
        "hangs": "cut",
        "never": "not started",
    }
    assert found["hangs"]["reason"].startswith("the budget ended after ")
    assert found["never"]["reason"] == "0 s of the budget were left"


def test_a_stage_that_can_measure_nothing_here_is_the_last(tmp_path: Path, start: Any) -> None:
    process = start(("first", 60, f"print('no GPU'); raise SystemExit({EXIT_UNUSABLE})"), ("never", 60, PASSES))
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_UNUSABLE, output
    found = results(tmp_path)
    assert (found["first"]["state"], found["first"]["reason"]) == ("failed", "no GPU")
    assert (found["never"]["state"], found["never"]["reason"]) == ("not started", "no GPU")


def test_a_reader_of_the_page_never_sees_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.write(tmp_path, "first", [])
    before = {path: path.read_text() for path in tmp_path.iterdir()}

    def interrupted(*names: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        page.write(tmp_path, "second", [])
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_row_that_was_cut_is_left_out(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"what": "whole"}\n{"what": "ha')
    assert runner._read_rows(rows) == [{"what": "whole"}]
    assert runner._read_rows(tmp_path / "none") == []


def test_the_command_imports_no_torch() -> None:
    code = "import sys, benchmarks.gpu.__main__; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ(), check=True)


def test_results_of_another_call_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    done = gpu("--out", str(tmp_path))
    assert done.returncode == EXIT_UNUSABLE
    assert "holds the results of another call" in done.stderr


def test_an_unknown_stage_is_named() -> None:
    done = gpu("--out", "x", "--stages", "facts,cifar")
    assert done.returncode == EXIT_UNUSABLE
    assert "no stage cifar: choose from facts, smoke" in done.stderr


def gpu(*words: str) -> subprocess.CompletedProcess[str]:
    all_words = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.run(all_words, cwd=ROOT, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S)


def test_every_stage_is_a_function() -> None:
    from benchmarks.gpu.__main__ import DEFAULT, STAGES

    assert set(STAGES) - set(DEFAULT) == {"cifar10"}
    for function, _ in STAGES.values():
        module, _, name = function.partition(".")
        assert callable(getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name))


def test_a_package_that_is_missing_or_too_old_is_named_with_its_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": "2.9.1+cu128", "lightning": "2.10.0"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    missing = facts.missing_packages()
    assert missing["torch"] == "torch 2.9.1+cu128 is older than 2.11: torch==2.15.0"
    assert missing["hydra-core"] == "hydra-core==1.3.8 is missing"
    assert "lightning" not in missing, "2.10 is newer than 2.6.1"
    assert set(facts.UNUSED) < missing.keys()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "rows.jsonl", tmp_path, tmp_path, is_rehearsal=False)


def rows(bench: Bench) -> list[tuple[str, str, str, bool | None]]:
    return [(row["what"], row["result"], row["aim"], row["is_met"]) for row in runner._read_rows(bench.rows)]


def test_a_figure_is_a_median_against_its_aim(bench: Bench) -> None:
    bench.figure("a", [3.0, 1.0, 2.0], "{:.1f} s", Aim("<=", 2.0))
    bench.figure("b", [0.5], "{:.1f}", Aim(">=", 0.6))
    bench.figure("c", [float("nan")], "{:.1e}", Aim("<=", 1e-12))
    bench.figure("d", [4.0], "{:.0f}")
    assert rows(bench) == [
        ("a", "2.0 s (1.0 s to 3.0 s, n=3)", "<= 2.0 s", True),
        ("b", "0.5", ">= 0.6", False),
        ("c", "nan", "<= 1.0e-12", False),
        ("d", "4", "", None),
    ]


def test_a_part_that_fails_is_a_row_and_the_others_follow(bench: Bench) -> None:
    def fails(bench: Bench) -> None:
        raise ValueError("this is why\nand more")

    bench.together(("first", fails), ("second", lambda bench: bench.check("second", True)))
    assert sorted(rows(bench)) == [
        ("first", "failed: this is why", "must be", False),
        ("second", "so it is", "must be", True),
    ]


def test_what_a_command_prints_is_in_the_log_before_it_ends(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """So that a log which is cut has all that was printed until then."""
    go, printed = bench.scratch / "go", []
    code = f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"

    def has_begun() -> bool:
        printed.append(capfd.readouterr().out)
        return "it | begun\n" in "".join(printed)

    def let_go(process: subprocess.Popen[str]) -> None:
        try:
            wait_until(has_begun, what="the first line")
        finally:
            go.touch()

    done = command("it", "-c", code, meanwhile=let_go)
    assert (done.code, done.output) == (0, "begun\n")


def test_a_failed_command_is_told_by_its_first_error() -> None:
    output = "epoch 1\nTraceback (most recent call last):\n  File x\nconfig error: no such key\n1 error; see --help\n"
    with pytest.raises(RuntimeError, match="it ended with code 2, not 0: config error: no such key"):
        Done("it", 2, output, 1.0).expect(0)
    output = "W1 torchrun\n[rank1]: torch.OutOfMemoryError: CUDA out of memory\n====\n"
    with pytest.raises(RuntimeError, match=r"it ended with code 1, not 0: .*CUDA out of memory"):
        Done("it", 1, output, 1.0).expect(0)
    Done("it", 1, output, 1.0).expect(1)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("sm90_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "gradients of the weights"),
        ("sm80_xmma_dgrad_implicit_gemm_bf16bf16", "gradients of their inputs"),
        ("cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x128_32x3_nhwc_align8", "convolutions, forward"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NHWC<__nv_bfloat16>", "batch norm"),
        ("void at::native::batch_norm_backward_reduce_channels_last_kernel<4>", "batch norm"),
        ("void cudnn::ops::nchwToNhwcKernel<float>", "memory layout"),
        ("void at::native::multi_tensor_apply_kernel<FusedSgdMathFunctor>", "update of the weights"),
        ("nvjet_tst_gemm", "matrix products"),
        ("sm90_xmma_gemm_bf16bf16", "matrix products"),
        ("void at::native::index_elementwise_kernel<128, 4>", "gathering"),
        ("void at::native::vectorized_elementwise_kernel<4, threshold>", "element by element"),
        ("Memcpy DtoH (Device -> Pinned)", "copies"),
        ("something_new", "something_new"),
    ],
)
def test_a_kernel_is_told_in_words(kernel: str, words: str) -> None:
    assert words in in_words(kernel)

"""Unused modules are deferred, and work when they are used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.harness import PATIENCE_S, ROOT, command, environ

pytestmark = [pytest.mark.full, pytest.mark.processes]
# of a library one module that it imports whenever it is used
UNUSED = (
    *("scipy.signal", "scipy", "sklearn", "torchvision", "matplotlib", "pandas", "sympy"),
    *("torch._dynamo.eval_frame", "torch._inductor", "torch.distributed.tensor"),
    *("torchmetrics.image", "torchmetrics.functional.audio"),
)
IMPORTED = """
import sys
import lockstep
from lockstep.launch.worker import import_training
import_training()
assert "torchmetrics.image" not in sys.modules
"""


def test_imports_of_training(tmp_path: Path) -> None:
    target = "tests.support.callbacks.NotesImports"
    notes = f"+callbacks.notes={{_target_:{target},path:'{tmp_path / 'modules.json'}'}}"
    words = command("debug=fast", "model.width=4", "strategy=cpu", "trainer.devices=2", notes)
    variables = {**environ(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    for when, imported in json.loads((tmp_path / "modules.json").read_text()).items():
        assert "lightning.pytorch" in imported
        assert [name for name in UNUSED if name in imported] == [], when


LATER = {
    "a metric of images": """
from torchmetrics.image import PeakSignalNoiseRatio
from torchmetrics.functional.image import structural_similarity_index_measure
metric = PeakSignalNoiseRatio(data_range=1.0)
images = torch.linspace(0, 1, 768).view(1, 3, 16, 16)
assert metric(images, images * 0.5) > 0
assert structural_similarity_index_measure(images, images) == 1
import numpy, PIL
assert PIL.PILLOW_VERSION  # what torchmetrics has always set
""",
    "any metric by its package": """
import torchmetrics
assert torchmetrics.MeanSquaredError()(torch.ones(3), torch.zeros(3)) == 1
assert torchmetrics.functional.mean_absolute_error(torch.ones(3), torch.zeros(3)) == 1
assert torchmetrics.wrappers.MinMaxMetric is not None
assert (
    torchmetrics.classification.MulticlassAccuracy
    is sys.modules["lockstep.tasks.scores"].MulticlassAccuracy
)
assert torchmetrics.Metric is torchmetrics.metric.Metric
assert len(torchmetrics._logger.handlers) == 1
""",
    "the compiler, where torchvision asks whether it is there": """
import torchvision
assert "torch._dynamo.eval_frame" not in sys.modules
from torchvision.ops import roi_align
from torchvision.ops.roi_align import is_compile_supported
boxes = [torch.tensor([[0.0, 0.0, 3.0, 3.0]])]
assert roi_align(torch.ones(1, 1, 4, 4), boxes, (2, 2)).tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
assert "torch._dynamo.eval_frame" not in sys.modules
assert is_compile_supported("cpu") and "torch._dynamo.eval_frame" in sys.modules
assert sys.modules["torch._dynamo.utils"].is_compile_supported is not is_compile_supported
""",
    "a part of the compiler by its name, which the compiler imports too": """
import importlib
import torch._dynamo.config as settings
assert settings is sys.modules["torch._dynamo.config"] is torch._dynamo.eval_frame.config
assert settings.__spec__.origin == settings.__file__
import torch._dynamo.guards as guards
from torch._dynamo import exc
assert importlib.reload(exc).Unsupported is not None
""",
    "parts of torchmetrics that are imported by name, the package after them": """
from torchmetrics.image.psnr import PeakSignalNoiseRatio
import torchmetrics, torchmetrics.regression
assert (
    torchmetrics.image.psnr.PeakSignalNoiseRatio
    is torchmetrics.image.PeakSignalNoiseRatio
    is PeakSignalNoiseRatio
)
assert torchmetrics.regression is sys.modules["torchmetrics.regression"]
assert torchmetrics.image.__spec__.loader is torchmetrics.image.__loader__
""",
    "a part of the compiler as an attribute": """
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
assert "torch._dynamo.eval_frame" not in sys.modules
assert torch._dynamo.utils.counters is not None and "torch._dynamo.eval_frame" in sys.modules
with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
    assert torch._dynamo.utils.get_optimize_ddp_mode() == "python_reducer"
""",
    "torch.compile": """
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=1.0)
parameter.sum().backward()
optimizer.step()
optimizer.zero_grad()
assert "torch._dynamo.eval_frame" not in sys.modules
left_alone = torch.compiler.disable(lambda x: x + 1)
assert left_alone(1) == 2
assert "torch._dynamo.eval_frame" not in sys.modules
compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager", fullgraph=True)
assert compiled(torch.ones(1, 2)).shape == (1, 2)
from lightning.pytorch.utilities.compile import to_uncompiled
from lightning.fabric.wrappers import _unwrap_compiled
assert type(_unwrap_compiled(compiled)[0]) is torch.nn.Linear
try:
    torch.compile(lambda x: left_alone(x) * 2, backend="eager", fullgraph=True)(torch.ones(2))
except torch._dynamo.exc.Unsupported:
    pass
else:
    raise AssertionError("the compiler was not told to leave a function alone")
assert torch.compile(lambda x: left_alone(x) * 2, backend="eager")(torch.ones(2)).tolist() == [4, 4]
parameter.sum().backward()
optimizer.step()
optimizer.zero_grad()
assert torch._dynamo.config.optimize_ddp
torch.use_deterministic_algorithms(True)
""",
    "many threads at once": """
from concurrent.futures import ThreadPoolExecutor
import torchmetrics
def use(number):
    return torchmetrics.MeanSquaredError, torch._dynamo.explain, torchmetrics.functional.accuracy
with ThreadPoolExecutor(8) as pool:
    assert len(set(pool.map(use, range(32)))) == 1
""",
}


@pytest.mark.parametrize("use", LATER)
def test_deferred_module(use: str) -> None:
    """In forks of a process with deferred imports."""
    lines = [
        "import warnings; warnings.simplefilter('error')",
        # torch would rather have Python 3.13.1.
        "warnings.filterwarnings('ignore', 'Guards may run slower on Python 3.13.0')",
        f"{IMPORTED}import torch",
        LATER[use],
    ]
    done = commands.run([sys.executable, "-c", "\n".join(lines)])
    assert done.returncode == 0, done.stderr

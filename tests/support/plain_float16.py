"""A plain float16 training with torch's GradScaler, from the data and first weights of a run: an oracle.

`python -m tests.support.plain_float16 RUN GROWTH_INTERVAL` writes the scale after each step and the network into the
folder of the run, on the GPU.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from lockstep.assembly import session
from lockstep.config.saved import config_file
from lockstep.models.classifier import Classifier
from lockstep.runs.folder import RunFolder
from lockstep.training.train import prepare_training


def main(folder: RunFolder, growth_interval: int) -> None:
    config = config_file.load(folder.config)
    parts = config.trainer.accumulate_grad_batches
    with session.open_session(folder, config, None) as here:
        here, data, module, _ = prepare_training(here, is_new=True)
        assert isinstance(module, Classifier)
        module.to(here.device).train()
        net, loader = module.net, data.train_dataloader()
        optimizer = module._optimizer_and_schedule()[0]
        scaler = torch.amp.GradScaler("cuda", growth_interval=growth_interval)
        scales: list[float] = []
        for epoch in range(config.trainer.max_epochs):
            loader.batch_sampler.set_epoch(epoch)
            for number, batch in enumerate(loader, start=1):
                if (number - 1) % parts == 0:
                    optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16):
                    outputs = net((batch.inputs.float() - module.mean) / module.std)
                losses = F.cross_entropy(outputs.float(), batch.targets, reduction="none")
                scaler.scale(losses.sum() * (1 / batch.shard.group_size)).backward()
                if number % parts and number < len(loader.batch_sampler):
                    continue
                scaler.unscale_(optimizer)
                assert config.trainer.gradient_clip_norm is not None
                parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
                nn.utils.clip_grad_norm_(parameters, config.trainer.gradient_clip_norm)
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
    (folder.path / "scales").write_text("".join(f"{scale}\n" for scale in scales))
    torch.save({f"net.{name}": value.cpu() for name, value in net.state_dict().items()}, folder.path / "net.pt")


if __name__ == "__main__":
    main(RunFolder(Path(sys.argv[1])), int(sys.argv[2]))

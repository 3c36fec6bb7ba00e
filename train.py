"""Train an image classifier: `python train.py [group=option] [key=value] ...`, see `python train.py --help`."""

from lockstep.cli import entry

if __name__ == "__main__":
    entry.begin()  # before the imports, which take a while

import hydra
from omegaconf import DictConfig

from lockstep.cli import train
from lockstep.cli.main import leave


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    """Train one run. Returns the monitored value, for sweeps."""
    return train.train(cfg)


if __name__ == "__main__":
    leave(lambda: train.run(main))

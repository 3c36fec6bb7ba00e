"""Train an image classifier: `python train.py [group=option] [setting=value] ...`, or --help."""

from lockstep.cli import entry

if __name__ == "__main__":
    entry.train(__file__)

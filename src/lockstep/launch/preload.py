"""What a training imports before it reads a word of its own, for processes that are to be ready when it begins."""

from lockstep.system.lazy_imports import lazy
from lockstep.system.process import no_garbage_collection


def import_training() -> None:
    """Import torch, Lightning and what Lockstep itself has for the default training; nothing of the user's own."""
    with no_garbage_collection(), lazy():
        import lockstep.training.train  # noqa: F401
        from lockstep.callbacks import Curves, Pictures, SplitTensorBoardLogger  # noqa: F401
        from lockstep.data import digits  # noqa: F401
        from lockstep.models import ResNet18  # noqa: F401
        from lockstep.tasks import Classification  # noqa: F401

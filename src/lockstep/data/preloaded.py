"""What every decoding process needs, for the process that forks them."""

from lockstep.system.lazy_imports import lazy
from lockstep.system.process import no_garbage_collection

with no_garbage_collection(), lazy():
    import lockstep.data.loader  # noqa: F401

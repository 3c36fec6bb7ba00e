"""Results of `lockstep verify` for custom modules, in outputs/verified.json, by a digest of module and settings."""

from datetime import date
from pathlib import Path

from lockstep.runs.files import read_json, write_json

FILE = Path("outputs/verified.json")


def remember(digest: str, largest: float) -> None:
    """Record that a training of this digest differed by at most `largest` today."""
    known = read_json(FILE)
    FILE.parent.mkdir(exist_ok=True)
    write_json(FILE.resolve(), {**known, digest: {"date": date.today().isoformat(), "largest": largest}})


def recall(digest: str) -> str | None:
    """Describe the recorded result; None if the digest was not verified."""
    found = read_json(FILE).get(digest)
    return None if found is None else f"verified on {found['date']}, within {found['largest']:.1e}"

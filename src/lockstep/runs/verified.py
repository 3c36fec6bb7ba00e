"""What `lockstep verify` has found exact, in outputs/verified.json: modules of the user's own, as they were then."""

from datetime import date
from pathlib import Path

from lockstep.runs.files import read_json, write_json

FILE = Path("outputs/verified.json")


def remember(digest: str, largest: float) -> None:
    """Keep that a training of this digest differed by `largest` at most, today."""
    known = read_json(FILE)
    FILE.parent.mkdir(exist_ok=True)
    write_json(FILE, {**known, digest: {"date": date.today().isoformat(), "largest": largest}})


def recalled(digest: str) -> str | None:
    """When it was found, and how exact, in words; None where nobody has looked."""
    found = read_json(FILE).get(digest)
    return None if found is None else f"verified on {found['date']}, within {found['largest']:.1e}"

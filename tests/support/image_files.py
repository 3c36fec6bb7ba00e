"""Small folders of images for tests."""

import base64
import csv
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources.folders import image_folder
from lockstep.data.splits import Splits

# pillow-heif 1.8.1, quality 50: 48x32 of red, blue and green, turned to 32x48 by its box `irot`
HEIC = base64.b85decode(
    b"0000SW^{RQXk}?*00000ZE0pPXk}?*ZE0a<0005VZDn*}000000000XXk=`10000000000aA{+700000000000000000"
    b"000G-+&aV*mgE07O6l0ssL300001>;M4(00000002P%0ssI200J!l0RR9100000Bme*aIB98aW&i*H00062000$fZf0c"
    b"y000000RRAKc4ILB0000LX>Mj^0ssI300IC2MR;ju000004sdC7Z2$lO00031009SSaB^?}008D`aAR)(004Gqc4I>U1"
    b"8@KU0FVFx0000U@BsY%`1k+-4+CHT0RR|40Sp2E{{wIU00RJ!0009300RIXx&lC90096hLID8-Z~y=U0FVFx0{{R603M"
    b"(qfd!W8<fgf}2xu@M00096AOHXZ03l)k0RRR>0l{;?i2wiq6Ju{|a&BX6cmM$a4FCp!0000KX>)L8000000000$0000$"
    b"0000eV{Bn?0000m000010000W00001|NsB+00002|NsBs000020000GaA|mH000000|*ER00009X>xCL0{{R38EJ5BVE"
    b"_OC000000RRC8fdT^sgoXeB02*m>Wo7^X0000001jhhb7KGk009620001OZDe6|0000zC;_h%fO#ZETc7^+qyKfY!^Vh"
    b"sC7<auedJ$X<9d9A_F<)@P<2HU#)MzQAb-1!>DqH1Ctzw7R^Fak-T(jq21R&jW&i+9O#mtY000O80Ra*K0{{R30RRR70"
    b"000000"
)
PREPROCESSING = Preprocessing.from_keys(8, "auto", "crop", "auto", "white")
SETTINGS: dict[str, Any] = {
    "image_size": 8, "crop_percent": "auto", "fit": "crop", "interpolation": "auto", "channels": 3,
    "background": "white", "val_fraction": 0.25, "test_fraction": 0.25, "split_seed": 0,
    "cache": None, "memory": "host", "group": None, "test_after": None,
}  # fmt: skip
LIST: dict[str, Any] = {
    **SETTINGS, "path_column": "path", "target_columns": ["label"], "targets": "classes",
    "split_column": None, "group_column": None, "date_column": None,
}  # fmt: skip


def write_image(path: Path, seed: int = 0, height: int = 10, width: int = 12) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def write_folder(folder: Path, count: int = 20) -> Path:
    """Write two classes of `count` images, with spaces, other scripts and a folder in the names."""
    for label, name in enumerate(("red fox", "ärger 狐")):
        for i in range(count):
            below = "deep er/" if i % 5 == 0 else ""
            write_image(folder / name / f"{below}bild ü {i:02d}.png", seed=100 * label + i)
    return folder


def read(root: Path, **changes: Any) -> Splits:
    return image_folder(root=str(root), **{**SETTINGS, **changes})


def _edit_in_place(path: Path) -> None:
    """Change the pixels and keep size and time of change."""
    state, content = path.stat(), bytearray(path.read_bytes())
    other = write_image(path.with_name("other.bmp"), seed=77).read_bytes()
    assert len(other) == len(content)
    path.with_name("other.bmp").unlink()
    path.write_bytes(other)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "changed": lambda path: write_image(path, seed=99),
    "added": lambda path: write_image(path.with_name("new.png"), seed=99),
    "removed": lambda path: path.unlink(),
    "renamed": lambda path: path.rename(path.with_name("zzz.bmp")),
    "moved to the other class": lambda path: path.rename(path.parents[1] / "ärger 狐" / path.name),
    "edited in place": _edit_in_place,
}


def write_list(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_listed(folder: Path, count: int = 20) -> Path:
    """Write `count` images and a list of them with a class, a 0/1 label, a number and the split."""
    rows = []
    for i in range(count):
        name = write_image(folder / f"deep er/bild ü {i:02d}.png", seed=i).relative_to(folder)
        split = ("train", "train", "train", "val", "test")[i % 5]
        rows.append(
            {
                "path": str(name),
                "label": "ab"[i % 2],
                "wet": i % 3 == 0,
                "kg": i / 4,
                "split": split,
            }
        )
    return write_list(folder / "list.csv", [row | {"wet": int(row["wet"])} for row in rows])

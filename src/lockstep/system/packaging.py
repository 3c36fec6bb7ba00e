"""Puts conf/ of the repository, which is not below src/, into the wheel as `lockstep/conf`.

setuptools loads this file without the package (pyproject.toml, tool.setuptools.cmdclass).
"""

import shutil
from pathlib import Path

# Other imports are impossible, because a build environment has only setuptools.
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """Copies the package as setuptools does, and conf/ into it.

    An editable install reads conf/ where it is.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree("conf", Path(self.build_lib, "lockstep/conf"), dirs_exist_ok=True)

    def get_source_files(self) -> list[str]:
        return [
            *super().get_source_files(),
            *(str(path) for path in Path("conf").rglob("*") if path.is_file()),
        ]

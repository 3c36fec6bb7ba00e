"""How a wheel of Lockstep is built: conf/ of the repository, which is not below src/, becomes `lockstep/conf`.

setuptools loads this file by itself, without the package (pyproject.toml, tool.setuptools.cmdclass).
"""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # and nothing else: what builds has no more installed


class BuildWithConf(build_py):
    """Copies the package as setuptools does, and conf/ into it; an editable install reads conf/ where it is."""

    def run(self) -> None:
        """Copy the files."""
        super().run()
        if not self.editable_mode:
            shutil.copytree("conf", Path(self.build_lib, "lockstep/conf"), dirs_exist_ok=True)

    def get_source_files(self) -> list[str]:
        """Files of a source distribution."""
        return [*super().get_source_files(), *map(str, Path("conf").rglob("*.yaml"))]

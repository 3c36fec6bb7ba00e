"""How a wheel of Lockstep is built: conf/ of the repository, which is not below src/, becomes `lockstep/conf`.

setuptools loads this file by itself, without the package (pyproject.toml, tool.setuptools.cmdclass).
"""

from pathlib import Path

from setuptools.command.build_py import build_py  # and nothing else: what builds has no more installed

CONF = Path("conf")


class BuildWithConf(build_py):
    """Copies the package as setuptools does, and conf/ into it; an editable install reads conf/ where it is."""

    def run(self) -> None:
        """Copy the files."""
        super().run()
        if not self.editable_mode:
            for source, target in self._conf().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_source_files(self) -> list[str]:
        """What a source distribution has to hold."""
        return [*super().get_source_files(), *self._conf()]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """What is written into the package."""
        return [*super().get_outputs(include_bytecode), *self._conf().values()]

    def _conf(self) -> dict[str, str]:
        """By each file of conf/, relative to the repository, where it goes."""
        folder = Path(self.build_lib, "lockstep")
        return {str(path): str(folder / path) for path in sorted(CONF.rglob("*.yaml"))}

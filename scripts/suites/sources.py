"""Gets the source distributions whose tests are run, and an environment that they run in."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path


class Workplace:
    """A folder with everything that the suites need; what is there is used again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        folder.mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        """Make the environment of the suites' own tests. Its packages are the group `suites`."""
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
            self._pip("install", "pip>=25.1")
            self._pip("install", "--group", "suites")

    def source(self, package: str, version: str | None = None) -> tuple[Path, str]:
        """The unpacked source distribution of a package, and its version."""
        have = sorted(self.folder.glob(f"{package.replace('-', '_')}-{version or '*'}.tar.gz"))
        if not have:
            wanted = package if version is None else f"{package}=={version}"
            flags = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", str(self.folder))
            self._pip("download", *flags, wanted)
            have = sorted(self.folder.glob(f"{package.replace('-', '_')}-{version or '*'}.tar.gz"))
        archive = have[-1]
        name = archive.name.removesuffix(".tar.gz")
        if not (self.folder / name).is_dir():
            with tarfile.open(archive) as packed:
                packed.extractall(self.folder, filter="data")
        return self.folder / name, name.rpartition("-")[2]

    def report(self, name: str) -> Path:
        """Where the JUnit file of a run lies."""
        return self.folder / "reports" / f"{name}.xml"

    def pytest(
        self, name: str, folder: Path, *arguments: str, environment: dict[str, str], timeout_s: float
    ) -> Path:
        """Run pytest in `folder`; the JUnit file, which is called `name`. Cases that fail are no error."""
        report = self.report(name)
        report.unlink(missing_ok=True)
        command = [str(self.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run(
            [*command, "-o", "junit_logging=all", *arguments],
            cwd=folder, env=environment, timeout=timeout_s, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if not report.exists():
            raise SystemExit(f"pytest in {folder} ended without a report: {' '.join(command)}")
        return report

    def _pip(self, *arguments: str) -> None:
        python = self.python if self.python.exists() else sys.executable
        path = f"{self.python.parent}:/usr/bin:/bin"
        subprocess.run(
            [python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
            check=True, env={**os.environ, "PATH": path},
        )  # fmt: skip

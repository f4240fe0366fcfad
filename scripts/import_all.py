"""Import every module of an installed Headrace; fail where one cannot be or brings what only extras install.

Run by scripts/test_wheel.sh in an environment that has the base install and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys

from packaging.requirements import Requirement

OF_EXTRAS = ("headrace.economy", "headrace.gateway", "headrace.providers", "headrace.tools")
"""Packages that need an extra: no module outside of them may import them."""
INNER = (
    "headrace.telemetry.otel",
    "headrace.distil.learning",
    "headrace.search.postgres",
    "headrace.search.qdrant",
)
MODULE_OF = {"scikit-learn": "sklearn"}  # where the distribution has another name


def main() -> int:
    package = importlib.import_module("headrace")
    if "site-packages" not in (package.__file__ or ""):
        print(f"this is no installed wheel: {package.__file__}")
        return 1
    found = pkgutil.iter_modules(package.__path__, "headrace.")
    names = [name for one in found if one.name not in OF_EXTRAS for name in (one.name, *_inside(one))]
    wrong: list[str] = []
    for name in names:
        if name.endswith(".__main__") or name.startswith(INNER):  # the first runs a program
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            wrong.append(f"{name}: {error}")
    wrong += [
        f"{name} was imported, which only an extra installs" for name in sorted(of_extras() & {*sys.modules})
    ]
    for line in wrong:
        print(line)
    print(f"{len(names)} modules imported, {len(wrong)} wrong")
    return 1 if wrong or not names else 0


def _inside(module: pkgutil.ModuleInfo) -> list[str]:
    """The modules of a package."""
    if not module.ispkg:
        return []
    package = importlib.import_module(module.name)
    return [found.name for found in pkgutil.walk_packages(package.__path__, f"{module.name}.")]


def of_extras() -> set[str]:
    """The modules of what is required with an extra and not without."""
    required = [Requirement(text) for text in importlib.metadata.requires("headrace") or ()]
    base = {one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})}
    return {MODULE_OF.get(one.name, one.name.replace("-", "_")) for one in required if one.name not in base}


if __name__ == "__main__":
    sys.exit(main())

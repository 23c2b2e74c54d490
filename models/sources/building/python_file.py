"""`FILE.py:NAME`, `package.module:NAME`: an object that a Python file or module makes.

A file is executed once per process, under the name of its stem; a module is imported, and so is a file of a package
that is loaded (its relative imports need the package).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ...text import InputError

_LOADED: dict[Path, ModuleType] = {}


def load_object(path: Path, name: str) -> object:
    """The object `name` of the file; dots go into it.  Raises `InputError` naming the file, or what the file holds."""
    module = load_file(path)
    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = sorted(
                n for n, v in vars(module).items() if not n.startswith("_") and not isinstance(v, ModuleType)
            )
            raise InputError(f"{path} has no {name!r}; it has: {', '.join(public[:20]) or 'nothing public'}")
        found = getattr(found, part)
    return found


def load_file(path: Path) -> ModuleType:
    """The module of a file, or an importable module.  An exception in it is an `InputError` that names the file."""
    if path.suffix != ".py":
        try:
            return import_module(str(path))
        except (Exception, SystemExit) as error:
            raise InputError(f"module {path}: {type(error).__name__}: {error}") from error
    full = path.resolve()
    if full not in _LOADED:
        try:
            there = full.is_file()
        except (OSError, ValueError):  # a name that no file can have
            there = False
        if not there:
            raise InputError(f"{path}: no such file")
        dotted = _in_package(full)
        if dotted is not None:
            _LOADED[full] = load_file(Path(dotted))
            return _LOADED[full]
        spec = importlib.util.spec_from_file_location(full.stem, full)
        if spec is None or spec.loader is None:
            raise InputError(f"{path}: not a Python file")
        module = importlib.util.module_from_spec(spec)
        known = sys.modules.get(full.stem)
        if known is None:
            sys.modules[full.stem] = module  # dataclasses and type hints of the file look their module up
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # a file that ends the process would end it with its own exit code
            if known is None:
                sys.modules.pop(full.stem, None)
            raise InputError(f"{path}: {type(error).__name__}: {error}") from error
        _LOADED[full] = module
    return _LOADED[full]


def _in_package(full: Path) -> str | None:
    """The dotted name of a file whose folder, or a folder around it, is a package of this process."""
    if not (full.parent / "__init__.py").is_file():
        return None
    paths = [(name, getattr(module, "__path__", ())) for name, module in list(sys.modules.items())]
    folders = {
        str(Path(folder).resolve()): name for name, path in paths if isinstance(path, Iterable) for folder in path
    }  # torch.classes has another
    rest, folder = [full.stem], full.parent
    while (folder / "__init__.py").is_file():
        if str(folder) in folders:
            return ".".join([folders[str(folder)], *rest])
        rest, folder = [folder.name, *rest], folder.parent
    return None

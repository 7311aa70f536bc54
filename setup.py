"""Where the packages lie; pyproject.toml says everything else.

`models/`, `data/` and `configs/` stand beside `fne/` and are packages within it. Symbolic links in the clone say so to
Python, to type checkers and to editors: `fne/models` leads to `models`, likewise `data` and `configs`, and `src/fne`
leads to `fne`, so that `src` holds this package and nothing else. An editable install puts `src` on the path. Without
the links setuptools would install an import hook instead, which type checkers do not run: they would see `Any`.

Git for Windows makes text files of links where it may not create links. From such a clone the folders are mapped one by
one: the same packages are installed, but an editable install is without types.
"""

from pathlib import Path

from setuptools import setup

LINKED = {"": "src"}
MAPPED = {"fne": "fne", "fne.models": "models", "fne.data": "data", "fne.configs": "configs"}

packages = ("src/fne", "src/fne/models", "src/fne/data", "src/fne/configs")
setup(package_dir=LINKED if all(Path(package, "__init__.py").is_file() for package in packages) else MAPPED)

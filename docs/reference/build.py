"""Write the API reference, a folder of HTML pages, with pdoc: every public name that has a docstring.

    python docs/reference/build.py build/api

Warnings are errors: an annotation that pdoc cannot read stops the build.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import warnings
from pathlib import Path
from typing import Any

import jax
import pdoc.doc
import pdoc.render

PUBLIC = {
    "widebnn": [
        "networks",
        "limits",
        "posteriors",
        "samplers",
        "sampling",
        "estimators",
        "diagnostics",
        "data",
        "reproduction",
    ],
}
"""Packages and the modules below them that have a page; all other names are those in ``__all__``."""


def modules() -> dict[str, pdoc.doc.Module]:
    """The pages by name."""
    pages = {}
    for package, below in PUBLIC.items():
        module = importlib.import_module(package)
        for name in below:
            importlib.import_module(f"{package}.{name}")
        for name in module.__all__:
            getattr(module, name)  # names that are looked up when they are used
        # pdoc lists what __all__ lists, and says nothing of modules that are missing there.
        module.__all__ = [name for name in module.__all__ if name not in below] + below
        for name in (package, *(f"{package}.{name}" for name in below)):
            pages[name] = pdoc.doc.Module.from_name(name)
            for value in vars(pages[name].obj).values():
                give_constructor_its_module(value)
    return dict(sorted(pages.items()))


def give_constructor_its_module(value: Any) -> None:
    """Named tuples have constructors of a module that does not exist, where pdoc would look up their annotations."""
    if inspect.isclass(value) and hasattr(value, "_fields"):
        value.__new__.__module__ = value.__module__


def build(folder: Path) -> list[Path]:
    """Write all pages, the index and the search index; the paths of all, the index last."""
    pdoc.render.configure(
        docformat="google", show_source=False, template_directory=Path(__file__).parent, footer_text="widebnn"
    )
    jax.Array.__qualname__ = "Array"  # as users know it
    pages = modules()
    texts = {"search.js": pdoc.render.search_index(pages)}
    for name, page in pages.items():
        # The two colons before an indented example are restructured text that pdoc leaves as it is.
        texts[f"{name.replace('.', '/')}.html"] = pdoc.render.html_module(page, pages).replace("::</p>", ":</p>")
    texts["index.html"] = pdoc.render.html_index(pages)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [folder / name for name in texts]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the API reference.")
    parser.add_argument("folder", type=Path, help="where to write it, such as build/api")
    warnings.simplefilter("error")
    written = build(parser.parse_args().folder)
    print(f"wrote {len(written)} files; open {written[-1]}")

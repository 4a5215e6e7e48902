"""What the site adds to the files in docs/: the front page, the changelog, and a page for every example."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def on_config(config: Any) -> Any:
    """List the examples in the navigation."""
    for entry in config.nav:
        if "Examples" in entry:
            entry["Examples"] = [f"examples/{path.stem}.md" for path in EXAMPLES]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Pages that are made of files outside docs/."""
    made = {target: (ROOT / source).read_text() for target, source in PAGES.items()}
    made |= {f"examples/{path.stem}.md": example_page(path) for path in EXAMPLES}
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    if readme := files.get_file_from_path("README.md"):
        files.remove(readme)
    return files


def example_page(path: Path) -> str:
    """The docstring of an example, its picture if there is one, and its code."""
    code = path.read_text()
    title, _, rest = (ast.get_docstring(ast.parse(code)) or path.stem).partition("\n")
    name = path.stem.replace("_", " ").capitalize()
    has_picture = (ROOT / "docs" / "images" / f"{path.stem}.png").is_file()
    picture = f"![{title}](../images/{path.stem}.png)" if has_picture else ""
    body = code.split('"""', 2)[2].strip()
    return f"# {name}\n\n{title}\n{rest}\n\n{picture}\n\n```python\n{body}\n```\n"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as they work in the repository become links that work on the site."""
    if page.file.src_uri in PAGES:  # these lie one level above docs/
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        markdown = re.sub(r"\]\(examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)
        markdown = markdown.replace("](README.md)", "](index.md)").replace("](CHANGELOG.md)", "](changelog.md)")
        markdown = re.sub(r"\[([^\]]*)\]\((CITATION\.cff|LICENSE)\)", r"`\2`", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)+)examples/(\w+)\.py\)", lambda m: f"]({m[1][3:]}examples/{m[2]}.md)", markdown)
    return re.sub(r"\]\(((?:\.\./)+)README\.md\)", lambda m: f"]({m[1][3:]}index.md)", markdown)

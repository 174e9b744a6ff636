"""For `make docs`: where links and requests of the site's pages go.

Links from a page to files outside docs/ lead to the file in the repository; the site has no copy
of it, so they are text there. Two pages are made: the changelog, and the list of modules. No page
may ask for anything from elsewhere when it is looked at: such a request is a warning, which
`make docs` refuses.
"""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import Any

FROM_DISK = "scripts/worker-from-disk.js"
log = logging.getLogger("mkdocs.hooks.site_links")

REQUEST = re.compile(
    r"<(?:script|img|iframe|link[^>]*rel=\"?(?:stylesheet|icon|preconnect))[^>]*"
    r"(?:src|href)=\"?(?:https?:)?//[^>]*"
)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: object) -> str:
    """Called by mkdocs with each page's text."""
    if page.file.src_uri == "changes.md":
        changelog = Path(config["config_file_path"]).with_name("CHANGELOG.md")
        return changelog.read_text(encoding="utf-8").replace("](docs/", "](")
    if page.file.src_uri == "modules.md":
        return modules_page(Path(config["config_file_path"]).with_name("src") / "mirrorq")
    up = page.file.src_uri.count("/") + 1
    outside = rf"\[([^\]]+)\]\((?:\.\./){{{up}}}[^)\s]*\)"
    return re.sub(outside, r"`\1`", markdown)


def modules_page(package: Path) -> str:
    """Return a page with each room's purpose, and a table of its modules."""
    sections = ["# Modules"]
    for room in sorted(path.parent for path in package.rglob("__init__.py")):
        files = sorted(path for path in room.glob("*.py") if path.name != "__init__.py")
        name = ".".join(room.relative_to(package.parent).parts)
        rows = [f"| `{path.stem}` | {_first_paragraph(path)} |" for path in files]
        table = ["| module | purpose |", "|---|---|", *rows] if rows else []
        sections += [f"## {name}", _first_paragraph(room / "__init__.py"), "\n".join(table)]
    return "\n\n".join(sections)


def _first_paragraph(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def on_post_build(config: Any, **_: object) -> None:
    """Called by mkdocs when everything has been written."""
    for page in sorted(Path(config["site_dir"]).rglob("*.html")):
        found = REQUEST.search(page.read_text(encoding="utf-8"))
        if found:
            log.warning("%s asks another server: %s", page.name, found[0][:200])


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Called by mkdocs with each page's HTML."""
    return _own_script(output, "../" * page.url.count("/"))


def on_post_template(output_content: str, **_: object) -> str:
    """The same with what is no page: 404.html."""
    return _own_script(output_content, "")


def _own_script(html: str, up: str) -> str:
    """The plugin `offline` takes from another server what lets search run from the disk; the site
    has its own."""
    return html.replace("https://unpkg.com/iframe-worker/shim", up + FROM_DISK)

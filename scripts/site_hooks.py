"""What mkdocs does beside its configuration: README as the first page, files outside docs/, names in docstrings."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
ROLE = re.compile(r":(?:attr|class|func|meth|mod):(?:`~?([^`]*)`|<code>~?([^<]*)</code>)")
REPOSITORY = "repository"  # where the site keeps what the pages link to outside docs/


def outside(page: str, link: str) -> str | None:
    """The path in the repository that a link of ``docs/PAGE`` leads to, None if it stays within docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    if path.startswith("docs/") or not (ROOT / path).is_file():
        return None
    return path


def readme() -> str:
    """README as a page of docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return LINK.sub(lambda found: posixpath.relpath(found[1], "docs"), text)


def on_files(files: Any, config: Any) -> Any:
    """Adds README and every file outside docs/ that a page links to."""
    files.append(File.generated(config, "index.md", content=readme()))
    wanted: set[str] = set()
    for file in list(files):
        if file.src_uri.endswith(".md"):
            links = LINK.findall(file.content_string)
            wanted |= {path for link in links if (path := outside(file.src_uri, link))}
    for path in sorted(wanted - {"README.md"}):
        content = (ROOT / path).read_bytes()
        files.append(File.generated(config, f"{REPOSITORY}/{path}.txt", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links that leave docs/ to where the site has those files; leaves result files out of the search."""
    here = page.file.src_uri
    if here.startswith("results/"):
        page.meta.setdefault("search", {})["exclude"] = True

    def target(found: re.Match[str]) -> str:
        path = outside(here, found[1])
        if path is None:
            return found[1]
        place = "index.md" if path == "README.md" else f"{REPOSITORY}/{path}.txt"
        return posixpath.relpath(place, posixpath.dirname(here))

    return LINK.sub(target, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Names as docstrings spell them for other tools: the last part alone, as code."""
    return ROLE.sub(lambda found: f"<code>{(found[1] or found[2]).split('.')[-1]}</code>", html)

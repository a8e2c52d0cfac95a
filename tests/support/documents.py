"""Links in Markdown: what they lead to, in the checkout and where a package installs it."""

import re
from pathlib import Path


def links(document: Path) -> list[str]:
    """Return the relative links of a document, also those to its own headings."""
    found = re.findall(r"\]\(([^()\s]+)\)", document.read_text())
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def slug(heading: str) -> str:
    """Return the anchor that a heading gets from git servers."""
    plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(document: Path) -> set[str]:
    return {slug(title) for title in re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)}


def broken_links(document: Path) -> list[str]:
    """Return the relative links that lead nowhere."""
    broken = []
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken

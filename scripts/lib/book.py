"""Makes the sources of the documentation's site, and checks the links of the site.

book.py sources TO  copies the pages, and the files that they link to, into TO/src, with the same
                    paths as in the repository, so that every relative link holds; writes
                    TO/src/SUMMARY.md in the order of docs/README.md
book.py check SITE  names each link of the site in SITE that leads nowhere

Run in the root of the repository. The status is 1 if there are faults, which are printed.
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

INDEX = "docs/README.md"
DECISIONS = "docs/decisions"
# Pages of the repository that are not in docs/.
AROUND = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def text(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def prose(page):
    """A page without its code."""
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", page, flags=re.MULTILINE | re.DOTALL)


def targets(page, of_text=None):
    """The files that a page links to, as paths from the root."""
    found = []
    for link in LINK.findall(prose(text(page) if of_text is None else of_text)):
        url = urllib.parse.urlsplit(link)
        if url.scheme or url.netloc or not url.path:
            continue
        joined = pathlib.PurePosixPath(page).parent / urllib.parse.unquote(url.path)
        parts = []
        for part in joined.parts:
            if part == "..":
                parts = parts[:-1]
            elif part != ".":
                parts.append(part)
        found.append("/".join(parts))
    return found


def title(page):
    """The first heading of a page."""
    heading = re.search(r"^# (.+)$", text(page), flags=re.MULTILINE)
    return re.sub(r"[`*]", "", heading.group(1)) if heading else page


def sections():
    """The sections of the index, each with its pages."""
    found, pages = [], None
    for line in text(INDEX).splitlines():
        if heading := re.fullmatch(r"\*\*(.+)\*\*", line):
            pages = []
            found.append((heading.group(1), pages))
        elif pages is not None and line.startswith("- ["):
            links = line.split("): ")[0] + ")"
            pages.extend(page for page in targets(INDEX, links) if page not in AROUND)
    return found


def files(directory):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", directory],
        check=True, capture_output=True, encoding="utf-8")
    return listed.stdout.split("\n")[:-1]


def summary():
    """SUMMARY.md, and the pages of docs/ that it cannot place."""
    lines = ["# Summary", "", f"[{title('README.md')}](README.md)", f"[{title(INDEX)}]({INDEX})"]
    placed = {INDEX, *AROUND}
    pages = [page for page in files("docs") if page.endswith(".md")]
    listed = {page for _, of_section in sections() for page in of_section}
    for heading, of_section in sections():
        lines += ["", f"# {heading}", ""]
        for page in of_section:
            page = f"{page.rstrip('/')}/README.md" if pathlib.Path(page).is_dir() else page
            place(page, 0, lines, placed, listed)
    lines += ["", "# The repository", ""]
    lines += [f"- [{title(page)}]({page})" for page in AROUND[1:]]
    return "\n".join(lines) + "\n", [page for page in pages if page not in placed]


def place(page, depth, lines, placed, listed):
    """Adds a page, and below it the pages that only it leads to."""
    if page in placed:
        return
    placed.add(page)
    lines.append(f"{'  ' * depth}- [{title(page)}]({page})")
    for target in targets(page):
        is_page = target.startswith("docs/") and target.endswith(".md") and target != INDEX
        # Many pages cite decisions; their own index is above them.
        is_page = is_page and (DECISIONS not in target or page == f"{DECISIONS}/README.md")
        if is_page and target not in listed and pathlib.Path(target).is_file():
            place(target, depth + 1, lines, placed, listed)


def sources(to):
    to = pathlib.Path(to)
    shutil.rmtree(to / "src", ignore_errors=True)
    (to / "src").mkdir(parents=True)
    shutil.copy("docs/book.toml", to / "book.toml")
    contents, unplaced = summary()
    (to / "src" / "SUMMARY.md").write_text(contents, encoding="utf-8")
    copied = {path for path in files("docs") if path != "docs/book.toml"} | set(AROUND)
    faults = [f"{page}: no page leads to it; add it to {INDEX}" for page in unplaced]
    for page in sorted(path for path in copied if path.endswith(".md")):
        for target in targets(page):
            path = pathlib.Path(target)
            if not path.exists():
                faults.append(f"{page}: links to {target}, which does not exist")
            elif path.is_file():
                copied.add(target)
            else:
                copied.update(files(target))
    for path in copied:
        (to / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to / "src" / path)
    return faults


class Page(html.parser.HTMLParser):
    """The links and the ids of a page."""

    def __init__(self):
        super().__init__()
        self.links, self.ids = [], set()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(attributes[name] for name in ("id", "name") if attributes.get(name))
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]


def check(site):
    site = pathlib.Path(site).resolve()
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = Page()
        pages[path].feed(path.read_text(encoding="utf-8"))
    faults, links = [], 0
    for path, page in sorted(pages.items()):
        # The page that prints everything has the links of all others, from another place.
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            links += 1
            target = path
            if url.path:
                target = (path.parent / urllib.parse.unquote(url.path)).resolve()
            if target.is_dir():
                target /= "index.html"
            fragment = urllib.parse.unquote(url.fragment)
            name = path.relative_to(site)
            if not target.exists():
                # A link to a directory of the repository is one to its files.
                if not target.parent.is_dir() or target.name != "index.html":
                    faults.append(f"{name}: {link} does not exist")
            elif fragment and target in pages and fragment not in pages[target].ids:
                faults.append(f"{name}: {link}: no such heading")
    print(f"{len(pages)} pages, {links} links", file=sys.stderr)
    return faults if pages else [f"{site}: no pages"]


def main():
    commands = {"sources": sources, "check": check}
    if len(sys.argv) != 3 or sys.argv[1] not in commands:
        print(__doc__, file=sys.stderr)
        return 2
    faults = commands[sys.argv[1]](sys.argv[2])
    for fault in faults:
        print(fault)
    return 1 if faults else 0


sys.exit(main())

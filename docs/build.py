"""Builds the site: runs the notebooks, writes the reference, and has Zensical make pages of this folder.

    python docs/build.py            # into build/site; fails on any warning, and on a notebook that fails
    python docs/build.py --serve    # serves it
    python docs/build.py --unrun    # the notebooks have no outputs, which takes a fifth of the time

Needs `pip install -e ".[docs]"`, and the default model, which the notebooks load.
"""

import argparse
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import jupytext
import nbclient
import nbconvert

DOCS = pathlib.Path(__file__).parent
ROOT = DOCS.parent
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
sys.path.insert(0, str(ROOT))

from tests._fixtures.public import PUBLIC, ROOMS  # noqa: E402

# Links to files that the site has elsewhere than the repository.
_PLACES = (
    (re.compile(r"\]\(\.\./\.\./CONTRIBUTING\.md"), "](../developer/contributing.md"),
    (re.compile(r"\]\((\S*notebooks/\w+)\.py\)"), r"](\1.md)"),
)


def page_of(name: str) -> str:
    """Returns the page of a public name."""
    return f"reference/{name.replace('.', '/')}.md"


def index_of(room: str) -> str:
    """Returns the page that lists a room's names."""
    return f"reference/{room.replace('.', '/')}/index.md" if room else "reference/jaxspec.md"


def reference() -> dict[str, str]:
    """Returns the text of every page of the reference: one for each public name, and one for each room."""
    found = {page_of(name): f"---\ntitle: jaxspec.{name}\n---\n\n::: jaxspec.{name}\n" for name in PUBLIC}
    for room in ROOMS:
        found[index_of(room)] = "\n".join([f"# {_title(room)}", "", *table(room, index_of(room)), ""])
    about = (
        "Every public name has a page with its arguments, its errors and an example, which the tests run. Examples "
        "begin with `target` and `draft`, two small models, `prompt`, two rows of token ids, `key` and `folder`."
    )
    listed = [line for room in ROOMS for line in (f"## {_title(room)}", "", *table(room, "reference/index.md"), "")]
    found["reference/index.md"] = "\n".join(["# Reference", "", about, "", *listed])
    return found


def table(room: str, page: str) -> list[str]:
    """Returns the lines of a table of a room's public names, for a page: each name with its first sentence."""
    up = "../" * (page.count("/") - 1)
    own = sorted(name for name in PUBLIC if name.rpartition(".")[0] == room)
    links = [f"[`{name.rpartition('.')[2]}`]({up}{page_of(name).removeprefix('reference/')})" for name in own]
    rows = [f"| {link} | {summary(name)} |" for link, name in zip(links, own, strict=True)]
    return ["| name | |", "|---|---|", *rows]


def settings() -> str:
    """Returns the settings of Zensical, with the rooms of the reference in its menu."""
    rooms = "".join(f'    {{ "{_title(room)}" = "{index_of(room)}" }},\n' for room in ROOMS)
    whole = (DOCS / "zensical.toml").read_text("utf-8")
    place = '  { "Reference" = "reference/index.md" },\n'
    assert place in whole
    return whole.replace(place, f'  {{ "Reference" = [\n    "reference/index.md",\n{rooms}  ] }},\n')


def summary(name: str) -> str:
    """Returns the first sentence of a public name's docstring."""
    text = (inspect.getdoc(PUBLIC[name]) or "").split("\n\n")[0].replace("\n", " ")
    return text.split(". ")[0].rstrip(".").replace("|", "\\|") + "."


def notebook(path: pathlib.Path, *, run: bool = True) -> dict[str, str | bytes]:
    """Runs a notebook if asked to, and returns its page and its pictures.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    read = jupytext.read(path)
    if run:
        print(f"running {path.name}", flush=True)
        nbclient.NotebookClient(read, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    for cell in read.cells:  # warnings and progress bars are those of the machine
        cell.outputs = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
    resources = {"output_files_dir": ".", "unique_key": path.stem}
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(read, resources)
    outputs = {f"notebooks/{pathlib.Path(name).name}": data for name, data in resources["outputs"].items()}
    return {f"notebooks/{path.stem}.md": text, **outputs}


def write_pages(*, run: bool = True) -> None:
    """Writes all that Zensical reads into a separate folder, after it has run the notebooks if asked to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns("*.py", "*.toml", "*.json", "__pycache__"))
    pages: dict[str, str | bytes] = {**reference()}
    for path in PAGES.rglob("*.md"):
        text = path.read_text("utf-8")
        for place, made in _PLACES:
            text = place.sub(made, text)
        path.write_text(text, "utf-8")
    pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text("utf-8")
    pages["developer/contributing.md"] = (ROOT / "CONTRIBUTING.md").read_text("utf-8").replace("](docs/", "](../")
    for path in sorted((DOCS / "notebooks").glob("*.py")):
        pages |= notebook(path, run=run)
    for name, content in pages.items():
        path = PAGES / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _title(room: str) -> str:
    return f"jaxspec.{room}" if room else "The package jaxspec"


def check_titles() -> None:
    """Raises `SystemExit` if two pages of the site have the same title."""
    pages: dict[str, list[str]] = {}
    for path in sorted((BUILD / "site").rglob("index.html")):
        if title := re.search(r"<title>(.*?)</title>", path.read_text("utf-8")):
            pages.setdefault(title[1], []).append(path.parent.relative_to(BUILD / "site").as_posix())
    if twice := {title: paths for title, paths in pages.items() if len(paths) > 1}:
        raise SystemExit(f"several pages have one title: {twice}; give each its own")


def check_reference() -> None:
    """Raises `SystemExit` if a public name has no page in the site, or one without an example."""
    lacking = []
    for name in PUBLIC:
        page = BUILD / "site" / page_of(name).removesuffix(".md") / "index.html"
        if not page.is_file() or "Examples:" not in page.read_text("utf-8"):
            lacking.append(name)
    if lacking:
        raise SystemExit(f"no page with an example: {', '.join(lacking)}")
    print(f"{len(PUBLIC)} public names have a page with an example")


def main() -> int:
    """Builds or serves the site; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve it, and build again what changes below build/pages")
    parser.add_argument("--unrun", action="store_true", help="show notebooks as they are written, without outputs")
    options = parser.parse_args()
    write_pages(run=not options.unrun)
    words = ["serve"] if options.serve else ["build", "--strict", "--clean"]
    (BUILD / "zensical.toml").write_text(settings(), "utf-8")
    command = [sys.executable, "-m", "zensical", *words, "--config-file", str(BUILD / "zensical.toml")]
    status = subprocess.run(command, cwd=ROOT).returncode
    if status == 0 and not options.serve:
        check_reference()
        check_titles()
    return status


if __name__ == "__main__":
    sys.exit(main())

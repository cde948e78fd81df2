"""Build the site: every page, its pictures, its scripts, and what search looks through."""

from __future__ import annotations

import json
import posixpath
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from regard.gpt.config import HAS_READ
from regard.page.file.bundle import script
from regard_site.front import REAL, doors, real_model
from regard_site.gallery.exhibit import Exhibit, read_exhibits
from regard_site.markup import Heading, Part, render
from regard_site.pictures import atlas_picture, door_pictures
from regard_site.reference import address_of, reference_pages
from regard_site.slides import write_slides
from regard_site.sources import ROOT, Page, Section, colours, sections

__all__ = ["build"]

_HERE = Path(__file__).parent
_ASSETS = {".svg": "pictures", ".png": "pictures", ".py": "", ".ipynb": ""}
"""The folder of what pages show or link to, by its kind; empty for that in which it lies."""
_FRONT = Page("index.html", "regard")
_GALLERY = Page("gallery/index.html", "Gallery")


def build(
    folder: Path,
    gallery: Path | None = None,
    notebooks: Path | None = None,
    real: Path | None = None,
) -> None:
    """Write the site.

    Args:
        folder: is made where it is missing; files in it are overwritten.
        gallery: the folder that ``python -m regard_site.gallery`` made; None leaves it out.
        notebooks: the folder that ``make notebooks`` made; None leaves them out.
        real: the folder of a real model's page, whose ``index.html`` the landing page links to;
            None makes it say how to get one.

    Raises:
        ValueError: for a link to nothing, and for Markdown that can't be rendered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if gallery:
        not_shown = shutil.ignore_patterns("run", "exhibit.json", "progress.json")
        shutil.copytree(gallery, folder / "gallery", ignore=not_shown, dirs_exist_ok=True)
    if notebooks:
        shutil.copytree(notebooks, folder / "notebooks", dirs_exist_ok=True)
    if real:
        shutil.copytree(real, folder / REAL, dirs_exist_ok=True)
    site = _Site(folder, sections(), read_exhibits(gallery) if gallery else [])
    site.write_pages()
    site.write_static()


class _Site:
    """What all pages share, and what was collected from them."""

    def __init__(self, folder: Path, parts: list[Section], exhibits: list[Exhibit]) -> None:
        self._folder = folder
        self._exhibits = exhibits
        self._written = [page for section in parts for page in section.pages]
        self._addresses = {page.source: page.address for page in self._written}
        self._search: dict[str, dict[str, str]] = {}
        self._assets: set[str] = set()
        self._reference = reference_pages(lambda target: posixpath.relpath(target, "reference"))
        rooms = [one.page for one in self._reference]
        self._sections = [*parts, Section("Reference", rooms)]
        if exhibits:
            shown = [Page(f"gallery/{one.name}.html", one.title) for one in exhibits]
            self._sections.append(Section("Gallery", [_GALLERY, *shown]))
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def write_pages(self) -> None:
        for before, page, after in _with_neighbours(self._sections):
            if page.source is not None:
                self._write_markdown(page, before, after)
        for one in self._reference:
            self._collect(one.page, one.parts)
            headings = [Heading(2, anchor, name) for anchor, name in one.contents]
            self._write("page.html", one.page, html=one.html, headings=headings, notebook=None)
        self._write_gallery()
        self._write_front()

    def write_static(self) -> None:
        """What pages show or link to, scripts, styles, slides, and what is searched."""
        for asset in sorted(self._assets):
            target = self._folder / _place_of(asset)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / asset, target)
        static = self._folder / "static"
        not_shown = shutil.ignore_patterns("widget", "README.md")
        shutil.copytree(_HERE / "static", static, ignore=not_shown, dirs_exist_ok=True)
        widget = script("main.js", folder=_HERE / "static/widget")
        (static / "widget.js").write_text(widget, "utf-8")
        (static / "colours.css").write_text(colours(), "utf-8")
        write_slides(self._folder / "slides.html")
        index = json.dumps([*self._search.values()], ensure_ascii=False, separators=(",", ":"))
        (static / "search-index.js").write_text(f"globalThis.searchIndex={index};\n", "utf-8")

    def _write_front(self) -> None:
        """The landing page: the live page, three doors, a real model and the atlas."""
        atlas = next((one for one in self._exhibits if one.name == "atlas"), None)
        self._write(
            "front.html",
            _FRONT,
            html="",
            headings=[],
            has_read=HAS_READ,
            live=(self._folder / "live.html").exists(),
            doors=doors(door_pictures()),
            real=real_model(self._folder),
            atlas=atlas,
            atlas_picture=atlas_picture(atlas.data["resting"]) if atlas else "",
        )

    def _write_gallery(self) -> None:
        """A page for each exhibit, and one that lists them and says what they took."""
        for one in self._exhibits:
            page = Page(f"gallery/{one.name}.html", one.title)
            rendered = render(one.text, link=str, name=self._name_from(page))
            self._collect(page, rendered.parts)
            self._write("gallery.html", page, html=rendered.html, headings=[], exhibit=one)
        if self._exhibits:
            seconds = sum(one.seconds for one in self._exhibits)
            files = (path for path in (self._folder / "gallery").rglob("*") if path.is_file())
            size = sum(path.stat().st_size for path in files) / 1e6
            text = f"Made by the library in {seconds:.0f} s of processor time; {size:.1f} MB."
            self._write(
                "gallery.html",
                _GALLERY,
                html=f"<p>{text}</p>",
                headings=[],
                exhibit=None,
                exhibits=self._exhibits,
            )

    def _write_markdown(self, page: Page, before: Page | None, after: Page | None) -> None:
        folder = (ROOT / str(page.source)).parent
        made = Path("notebooks", page.address).with_suffix(".ipynb")
        notebook = made.as_posix() if (self._folder / made).is_file() else None
        rendered = render(
            page.text(),
            link=self._link_from(page),
            name=self._name_from(page),
            page=lambda name: (folder / name).read_text("utf-8"),
            notebook=notebook,
        )
        self._collect(page, rendered.parts)
        headings = [one for one in rendered.headings if one.level == 2]
        self._write(
            "page.html",
            page,
            html=rendered.html,
            headings=headings,
            before=before,
            after=after,
            notebook=notebook,
        )

    def _write(
        self,
        template: str,
        page: Page,
        *,
        html: str,
        headings: Sequence[Heading],
        before: Page | None = None,
        after: Page | None = None,
        **more: object,
    ) -> None:
        folder = posixpath.dirname(page.address)
        text = self._templates.get_template(template).render(
            page=page,
            sections=self._sections,
            html=html,
            headings=headings,
            before=before,
            after=after,
            to=lambda address: posixpath.relpath(address, folder or "."),
            **more,
        )
        target = self._folder / page.address
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")

    def _collect(self, page: Page, parts: Iterable[Part]) -> None:
        for part in parts:
            address = f"{page.address}#{part.anchor}" if part.anchor else page.address
            known = self._search.get(address, {"text": ""})  # two texts may begin a page
            self._search[address] = {
                "id": address,
                "page": page.title,
                "title": part.title or page.title,
                "text": " ".join([*known["text"].split(), *" ".join(part.text).split()]),
            }

    def _link_from(self, page: Page) -> Callable[[str], str]:
        """Where a target in the Markdown of a page lies on the site, from that page."""
        source = page.source
        assert source is not None, "only Markdown has links to resolve"

        def link(target: str) -> str:
            path, mark, anchor = target.partition("#")
            if not path:
                return target
            full = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
            if full in self._addresses:
                address = self._addresses[full]
            elif posixpath.splitext(full)[1] in _ASSETS and (ROOT / full).is_file():
                self._assets.add(full)
                address = _place_of(full)
            else:
                raise ValueError(f"{source} links to {target}, which is not a page of the site")
            here = posixpath.dirname(page.address) or "."
            return posixpath.relpath(address, here) + mark + anchor

        return link

    def _name_from(self, page: Page) -> Callable[[str], str | None]:
        def name(text: str) -> str | None:
            address = address_of(text)
            here = posixpath.dirname(page.address) or "."
            return posixpath.relpath(address, here) if address else None

        return name


def _with_neighbours(
    parts: Sequence[Section],
) -> Iterable[tuple[Page | None, Page, Page | None]]:
    """Each page with those before and after it, as they are read."""
    pages = [page for section in parts for page in section.pages]
    return zip([None, *pages[:-1]], pages, [*pages[1:], None], strict=True)


def _place_of(asset: str) -> str:
    """The address on the site of what a page shows or links to."""
    path = Path(asset)
    return f"{_ASSETS[path.suffix] or path.parent.name}/{path.name}"

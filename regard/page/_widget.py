"""The explorer's page as a widget of a notebook, whose requests are messages to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.responses import HTMLResponse

from regard._extras import needing
from regard.page._interface import interface
from regard.page._messages import Messages
from regard.page._notebook import heads_png
from regard.page._work import Work
from regard.page.file.notebook import still_html, widget_module, widget_page

with needing("notebook"):
    import anywidget
    import traitlets

if TYPE_CHECKING:
    from regard.page.subjects import Subject

__all__ = ["ExplorerWidget"]

_CHOICES = ("layer", "head", "query", "key")


class ExplorerWidget(anywidget.AnyWidget):
    """The explorer's page below a cell, without a server: the kernel answers its requests.

    It is shown where a notebook shows widgets, as JupyterLab, Colab, VS Code and marimo do. Where
    no kernel runs, as in an exported notebook, a picture of the heads is shown in its place.

    Args:
        subject: what it shows.

    Example:
        >>> import torch, regard
        >>> from regard.page import ExplorerWidget, RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(*torch.randn(3, 1, 2, 7, 4), mask=regard.causal())
        >>> widget = ExplorerWidget(RecordingSubject(recording, title="a recording"))
        >>> widget.selection
        {'layer': None, 'head': None, 'query': None, 'key': None}
        >>> widget.close()
    """

    selection = traitlets.Dict(
        key_trait=traitlets.Enum(_CHOICES),
        value_trait=traitlets.Int(allow_none=True),
        default_value=dict.fromkeys(_CHOICES),
        read_only=True,
        help="What is chosen on the page: layer, head, query and key, as numbers, or None.",
    ).tag(sync=True)
    _esm = traitlets.Unicode().tag(sync=True)

    def __init__(self, subject: Subject) -> None:
        self._subject, self._work = subject, Work()
        app = interface(subject, self._work)
        html = widget_page()

        @app.get("/", include_in_schema=False)
        async def page() -> HTMLResponse:
            return HTMLResponse(html)

        self._messages = Messages(app, self.send)
        self._fallback: dict[str, str] | None = None
        super().__init__()
        self.on_msg(self._receive)

    @traitlets.default("_esm")
    def _host(self) -> str:
        return widget_module()

    def close(self) -> None:
        """Take the page out of the notebook, and end what computes for it."""
        self._work.close()
        self._messages.close()
        super().close()

    def _receive(self, _widget: object, content: object, _buffers: object) -> None:
        self._messages.receive(content)

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return None
        data, metadata = bundle
        if self._fallback is None:
            still = heads_png(self._subject)
            self._fallback = {"text/html": still_html(self._subject.about()["title"], still)}
            if still is not None:
                self._fallback["image/png"] = still
        return {**data, **self._fallback}, metadata

"""A kernel's channel to a notebook's page, without either; and what HTML is made of."""

from html.parser import HTMLParser
from queue import SimpleQueue


class Comm:
    """What ipywidgets needs of a comm: it keeps what Python sends."""

    kernel = "a stand-in"

    def __init__(self, data=None, comm_id="widget", **_options):
        self.comm_id = comm_id
        self.state = dict(data["state"]) if data else {}
        self.sent = SimpleQueue()

    def send(self, data=None, metadata=None, buffers=None):
        self.sent.put((data, buffers or []))

    def on_msg(self, callback):
        self.callback = callback

    def close(self, *arguments, **options):
        self.closed = True

    def receive(self, data):
        self.callback({"content": {"data": data}, "buffers": []})


class Elements(HTMLParser):
    """Links and frames by their attributes, and the text between."""

    def __init__(self, html):
        super().__init__()
        self.actual, self.text = {}, ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        assert tag not in self.actual or tag == "div"
        self.actual[tag] = dict(attrs)

    def handle_data(self, data):
        self.text += data

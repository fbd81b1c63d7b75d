"""HTTP servers of a local fleet: none but a dashboard, each request of which has a token."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from distributed import Scheduler, Worker
from tornado import httputil, routing, web

_TOKEN = "token"


class FleetWorker(Worker):
    """distributed's worker without its HTTP server, which answers anyone on the machine."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Start none."""


class FleetScheduler(Scheduler):
    """distributed's scheduler, whose HTTP server answers requests with the dashboard's token only.

    Without a token there is no HTTP server.
    """

    def __init__(self, *args: Any, dashboard_token: str | None = None, **kwargs: Any) -> None:
        self._dashboard_token = dashboard_token
        super().__init__(*args, **kwargs)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Start the HTTP server of a dashboard."""
        if self._dashboard_token is None:
            return
        super().start_http_server(*args, **kwargs)
        port = self.http_server.port
        router = _TokenRouter(self.http_application, self._dashboard_token, port)
        self.http_server.request_callback = router


def with_token(link: str, token: str) -> str:
    """Return a link that a browser may open."""
    return f"{link}?{urlencode({_TOKEN: token})}"


class _TokenRouter(routing.Router):
    """Passes on requests, and opened web sockets, whose cookie has the token.

    A link with the token sets the cookie, and goes on to the page. Cookies are those of a host, and
    so of all its ports: the name of this one has the port. No request with the token is logged.
    """

    def __init__(self, application: web.Application, token: str, port: int) -> None:
        self._application, self._token = application, token
        self._cookie = f"skfleet-dashboard-{port}"
        options = {"token": token, "cookie": self._cookie}
        self._entrance = web.Application([(".*", _Entrance, options)], log_function=_log_nothing)

    def find_handler(self, request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        """Return what handles a request."""
        cookie = request.cookies.get(self._cookie)
        is_open = cookie is not None and _is_token(cookie.value, self._token)
        is_open &= self._token not in request.query
        application = self._application if is_open else self._entrance
        return application.find_handler(request, **kwargs)


class _Entrance(web.RequestHandler):
    """Sets the cookie for a link with the token, and refuses everything else."""

    def initialize(self, token: str, cookie: str) -> None:
        """Take the token, and the name of the cookie."""
        self._token, self._cookie = token, cookie

    def get(self) -> None:
        """Answer a request for a page, or for a web socket."""
        if _is_token(self.get_query_argument(_TOKEN, ""), self._token):
            self.set_cookie(self._cookie, self._token, httponly=True, samesite="Lax")
            self.redirect("/" + self.request.path.lstrip("/"))  # two slashes would begin a host
            return
        self.set_status(HTTPStatus.FORBIDDEN)
        self.set_header("Content-Type", "text/plain")
        self.finish("This dashboard needs its token: open the link in fleet.dashboard_link.\n")


def _log_nothing(handler: web.RequestHandler) -> None:
    """Log nothing of a request, whose line would have the token."""


def _is_token(sent: str, token: str) -> bool:
    """Compare what was sent, of any characters, in a time that does not depend on it."""
    return secrets.compare_digest(sent.encode(), token.encode())

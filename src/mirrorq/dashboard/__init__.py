"""A web page that shows a cluster: `mirrorq dashboard`, or `Node(..., dashboard="127.0.0.1:7480")`.

`history` keeps what was seen, `observer` looks at the cluster, `site` is the HTTP side of it,
`server` listens. `page/` is what a browser gets: files as they are, no build step, and nothing
from elsewhere. Needs the extra `dashboard`; nothing else imports this package.
"""

from __future__ import annotations

from mirrorq.dashboard.server import Dashboard

__all__ = ["Dashboard"]

"""A web page that shows a cluster: `mirrorq dashboard`, or `Node(..., dashboard="127.0.0.1:7480")`.

`history` keeps past values, `observer` looks at the cluster, `site` is the HTTP application,
`server` listens. `page/` has the browser's files: unchanged, no build step, and no content from
elsewhere. Needs the extra `dashboard`; no other package imports this package.
"""

from __future__ import annotations

from mirrorq.dashboard.server import Dashboard

__all__ = ["Dashboard"]

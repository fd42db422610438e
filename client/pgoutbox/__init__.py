"""A transactional outbox and job queue inside PostgreSQL: the thin client for psycopg 3.

`Outbox` calls the queue's functions over a connection of yours; `pgoutbox.worker` runs handlers.
"""

from ._outbox import *  # noqa: F403
from ._outbox import __all__ as __all__

__version__ = "0.1.0"

"""The toolbox of `l5.transports.rdma`: verbs, their backends and the mailbox over them.

`available` says whether RDMA can be used here, and if not, what is missing and what to do. Nothing
of a binding to verbs is imported, and no library opened, before it is called.
"""

from ._discover import Availability, available, backend

__all__ = ["Availability", "available", "backend"]

"""The toolbox of `l5.transports.rdma`: verbs, their backends and the mailbox over them."""

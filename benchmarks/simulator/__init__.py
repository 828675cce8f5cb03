"""A simulator of many clients and one server, event by event, in simulated time.

The clients ask the very policies that `l5` offers; what stands for machines are times of service,
measured here (`costs`) or scaled to the paper's cluster, and a link with a bandwidth, a latency and
a price for each verb (`link`, which also slows real transports down).

    clock    events in their order
    link     bytes through a pipe
    costs    what a request costs, and whom
    cluster  a server of some cores, clients in closed loops, a policy for each
    threads  threads that poll or sleep, and cores that they have to share
"""

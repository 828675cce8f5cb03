"""The toolbox of `l5.transports.shm`: the memory, its headroom, and the channel over it."""

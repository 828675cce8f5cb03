"""The R-tree service: a spatial index over `l5` connections."""

"""The map of a served tree, for a browser: `serve_map` (extra ``http``)."""

from catfish_app._map._serve import serve_map

__all__ = ["serve_map"]

"""The compiled module, made ready: the fast type, and cffi for what is rare or long."""

from catfish_app._native import ffi, lib

if lib.rt_python_install() != 0:
    raise ImportError("catfish_app._native could not set up its types; the error is printed above")

from catfish_app._rtree_fast import Tree, TreeFull  # exists since the call above

__all__ = ["Tree", "TreeFull", "ffi", "lib"]

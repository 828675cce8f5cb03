"""Tests for those who build on `l5`."""
from ._suite import TransportSuite

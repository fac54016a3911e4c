"""Measurements of this library and its peers, in one run on one machine."""

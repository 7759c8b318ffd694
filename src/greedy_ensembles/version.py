"""The version, in the one place that packaging and run folders read it from."""

__version__ = "0.2.0"

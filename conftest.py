"""Loads the suite's pytest plugin for every test of the repository."""

pytest_plugins = ["properties.recorder"]

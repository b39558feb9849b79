"""Builds, trains and scores the small model that comes with the project."""

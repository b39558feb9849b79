"""Builds, trains and scores the small models that come with the project."""

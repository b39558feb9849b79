"""Tools used at build time only: nothing in here is needed to run a model."""

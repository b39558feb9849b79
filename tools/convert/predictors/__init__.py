"""Predictors for a model that is converted: trained here, or imported."""

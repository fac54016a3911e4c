"""Tests of trained models that come in."""

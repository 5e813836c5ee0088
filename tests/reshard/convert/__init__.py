"""Tests of the conversions."""

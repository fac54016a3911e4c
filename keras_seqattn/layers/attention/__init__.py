"""Attention: functions, kernels and layers."""

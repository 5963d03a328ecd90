"""Prediction of a run's memory, speed and price on a slice, before any chip is paid for."""

"""Recordings and simulations of jobs, as RankWindow arrays."""

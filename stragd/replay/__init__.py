"""Recordings and simulations of jobs through the live scorer, all as RankWindow arrays.

`recording.open_recording` tells the format by the file's content, `run.replay` scores it. A reader
takes only what stragd could have seen in the live job: communication events, never compute events.
"""

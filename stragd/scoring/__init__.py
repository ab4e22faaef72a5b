"""The scorer in plain Python: the text that the native one equals bit for bit.

Read in this order: `model`, `estimate`, `series`, `case`, `reference`. Nothing here runs in the
daemon, which uses ``stragd._rscore.Scorer``.
"""

"""Pictures of results.

A `draw_` function of the OOD benchmark takes arrays and small records and returns a matplotlib `Figure`, with no state
kept anywhere; `figure.write_figure` puts it on disk. None needs a display.
"""

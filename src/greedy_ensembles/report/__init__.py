"""Results as people and programs read them: one table object and its formats, matplotlib's charts, the HTML page.

A `draw_` function takes records and arrays and returns a matplotlib `Figure`, or fills a panel, with no state kept
anywhere; in `figure`, `write_figure` puts one on disk and `draw_chart` makes one for the page. None needs a display.
"""

"""Results as people and programs read them: one table object and its formats, matplotlib's charts, the HTML page.

A `draw_` function takes records and arrays and returns a matplotlib `Figure`, or fills a panel, with no state kept
anywhere; `figure.write_figure` puts a figure on disk, `svg.draw_chart` makes a chart of the page. None needs a display.
"""

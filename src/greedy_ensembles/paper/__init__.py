"""This one paper: its published tables, its studies, and the runner that reproduces them. Only `cli` imports it.

study     what a study is: cases, sections, targets; a protocol; jobs with readable names; a part of it
catalogue all studies; those of image sets are defined there
published the paper's tables, and in what a run differs from the paper's
images    the image sets that a job needs, stand-ins and corruptions among them
runner    all jobs of a study: train, predict, judge, pack, write the record
records   what is kept of a run, and what the records of a study come to
cost      studies and runs, with what they need and would take
pages     the page: what a person wrote, then tables and pictures; how all pages are written
sections  what a page shows of a section: tables and pictures
method_runs   all methods of the registry: settings, training, records
methods   their study, tables and picture

`two_moons` (Figure 2), `illustrate` (Figure 1) and `guarantee` (how good is greedy?) need no images, and have commands
of their own.
"""

"""This one paper: its published tables, its studies, and the runner that reproduces them. Only `cli` imports it.

study     what a study is: cases, sections, targets; a protocol; jobs with readable names; a part of it
studies   all of them
published the paper's tables, and in what a run differs from the paper's
images    the image sets that a job needs, stand-ins and corruptions among them
runner    all jobs of a study: train, predict, judge, pack, write the record
records   what is kept of a run, and what the records of a study come to
cost      studies and runs, with what they need and would take
page_tables  the tables of a page
pages     the page: what a person wrote, then tables and pictures
method_runs   all methods of the registry in one setting: train, judge, write the record
methods_page  their tables and picture

`illustrate` (Figure 1) and `guarantee` (how good is greedy?) need no images, and have commands of their own.
"""

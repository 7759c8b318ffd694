"""The machinery of `greedy-ensembles reproduce`: from a study, which is data, to runs, records of them, and a page.

study     what a study is: cases, sections, targets; a protocol; jobs with readable names
narrow    a part of a study, or its tiny version
sets      the image sets that a job needs, stand-ins among them
job       one run: train, predict, judge, pack, and write the record
work      all jobs of a study, shared between processes through one folder
records   what is kept of a run, enough to build pages without weights or data
cost      how long what is missing would take
overview  studies and runs, with what they need and would take
gather    records, as comparisons over seeds
curve     figures over lambda_M, for a picture and for the choice that follows from it
page      Markdown: a summary, tables (`extras`: those that are not of OOD sets), pictures and a reading
"""

"""This one paper: its published tables, its studies, and the runner that reproduces them. Only `cli` imports it.

`study` says what a study is, `catalogue` has all of them, `runner` does their jobs, and `pages` writes what came of it.
`two_moons` (Figure 2), `illustrate` (Figure 1) and `guarantee` (how good is greedy?) need no images, and have commands
of their own.
"""

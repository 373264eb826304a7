"""A network becomes the one its target runs: match, plan, apply, report.

Not called `transform`: that is the function, and importing a package of its name would put the package in its place.
"""

"""Public measurements of real machines beside what the models predict: readers of the tables, and how they are judged.

One module per family or group of families; `families.FAMILIES` names them all.
"""

"""Readers behind the output of a run: ``onceflow.Reader`` handles each committed record, and its effects are counted.

::

    source -> pipeline -> topics of the output -> readers of one group, each a process -> one row an effect, in the store's file

What the readers did is read from that file when all is at rest; how often each effect is there, the checker judges.
"""

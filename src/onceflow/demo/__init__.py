"""The demo: real data, a real broker, a pipeline that is killed again and again, and an independent count that proves it.

``story.tell`` is the whole of it. ``pipeline.py`` is the pipeline, in plain PySpark with one line of onceflow.
"""

"""Writes the source of the site: the pages of the repository, and those made from the fixes, the matrix and the code.

`nox -s docs` runs it and gives the folder to Sphinx. Nothing that it writes is committed.
"""

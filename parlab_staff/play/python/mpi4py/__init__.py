"""The part of mpi4py that lab 01 uses, for ranks in a page.

Messages travel through the page's hub (`_hub`). As in the course's checks, no message is buffered:
a send waits until its receiver has called a receive.
"""

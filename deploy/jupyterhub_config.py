"""A JupyterHub for the course. Each user works on a copy of the labs in `~/parlab`.

Put the course into a folder that all users can read and only you can write, such as /opt/parlab. As
root, in that folder:

    make setup PYTHON=/usr/bin/python3      # all users must be able to read this Python, too
    .venv/bin/pip install jupyterhub
    npm install --global configurable-http-proxy
    mkdir --mode=700 /var/lib/parlab-hub && cd /var/lib/parlab-hub    # for the hub's own files
    /opt/parlab/.venv/bin/jupyterhub --config /opt/parlab/deploy/jupyterhub_config.py
"""

from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]

c = get_config()  # noqa: F821, JupyterHub defines it

# `parlab lab` copies the labs to the user's home, and never replaces a file there. Then it starts
# JupyterLab with the course's settings.
c.Spawner.cmd = [str(COURSE / ".venv/bin/parlab"), "lab"]
c.Spawner.default_url = "/lab/tree/labs/START.md"
c.Spawner.http_timeout = 120  # a class starts at the same time
# Everyone with an account on this machine may log in. Choose another authenticator if you need one.
c.Authenticator.allow_all = True

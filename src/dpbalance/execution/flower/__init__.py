"""What runs inside Flower? Only a courier: bytes from the worker to the agent of a device, and its answer back.

`server_app.py` and `client_app.py` are handed to Flower as an app of their own and run in its environment; nothing here
imports them, and they import nothing of this package.
"""

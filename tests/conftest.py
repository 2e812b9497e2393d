import os

from hypothesis import settings

# The same examples every time where a failure must mean a change; new ones on a developer's machine.
settings.register_profile("normscope", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("normscope")

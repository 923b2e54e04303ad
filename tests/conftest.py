"""What every test process sets first: signals, and the profile of hypothesis.

SPARSEWIRE_PROFILE is dev (the default), ci or nightly.
"""

import os
import signal

import hypothesis

# A shell script that runs the tests in the background starts them with SIGINT ignored, nohup with SIGHUP, and
# processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

PROFILES = {"dev": 40, "ci": 200, "nightly": 5000}

for _name, _examples in PROFILES.items():
    hypothesis.settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        print_blob=True,
        # One example holds the vectors of up to 33 ranks, so it is large and slow to draw on purpose.
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    )
hypothesis.settings.load_profile(os.environ.get("SPARSEWIRE_PROFILE", "dev"))

"""Hypothesis profiles: SPARSEWIRE_PROFILE is dev (the default), ci or nightly."""

import os

import hypothesis

PROFILES = {"dev": 25, "ci": 200, "nightly": 5000}

for _name, _examples in PROFILES.items():
    hypothesis.settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        print_blob=True,
        # inputs are built from whole vectors for up to 33 ranks: slow to draw, on purpose
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
    )
hypothesis.settings.load_profile(os.environ.get("SPARSEWIRE_PROFILE", "dev"))

"""Why: the likely cause of a finding, from telemetry. Pure functions."""

from stragd.diagnosis.diagnose import CAUSES, KIND_CAUSES, Diagnosis, apply, diagnose
from stragd.diagnosis.past import Past

__all__ = ["CAUSES", "KIND_CAUSES", "Diagnosis", "Past", "apply", "diagnose"]

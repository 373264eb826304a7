"""Phones of AWS Device Farm, through AWS's own client (extra ``aws``).

A generated test package holds the model and ``benchmark_model``; its test spec pushes both to the phone by adb and runs
``benchmark_model --graph=…`` there.
"""

import embedl_hub.providers.aws.tflite  # noqa: F401 - registers its providers
from embedl_hub.providers.aws.service import doctor

__all__ = ["doctor"]

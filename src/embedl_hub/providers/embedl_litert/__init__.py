"""Boards with LiteRT: ``embedl-litert <command> --model M …``, or Google's ``benchmark_model``, over the runner."""

import embedl_hub.providers.embedl_litert.tflite  # noqa: F401 - registers its providers

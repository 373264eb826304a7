"""Boards with LiteRT: ``embedl-litert <command> --model M …``, or Google's ``benchmark_model``, over the runner."""

from embedl_hub.tflite import provider

provider.register("embedl_litert")

"""Phones of AWS Device Farm, through AWS's own client (extra ``aws``).

A generated test package holds the model and ``benchmark_model``; its test spec pushes both to the phone by adb and runs
``benchmark_model --graph=…`` there.
"""

from embedl_hub.clouds.aws.config import TYPE
from embedl_hub.machine.steps import provide
from embedl_hub.toolchains.tflite.components import TFLiteProfiler

provide(
    (TYPE,),
    {TFLiteProfiler: "embedl_hub.clouds.aws.tflite:profile_model"},
    tools=("boto3", "botocore"),
    title="TFLite models",
    extra="tflite",
)

"""Models as graphs in a browser: read from ONNX and TFLite files, laid out by dagre, colored, compared.

Deploy and the hub show the same drawing. Files are read for their graph alone, within bounds, with neither onnx nor a
runtime; names in them are text from strangers and never become HTML.
"""

from embedl_graph._colorings import (
    Layer,
    compared,
    error_coloring,
    layer_colorings,
    layer_numbers,
    layers_of,
    precision_coloring,
)
from embedl_graph._model import Coloring, GraphError, ModelGraph, Node, Tensor
from embedl_graph._page import (
    STATIC,
    Shown,
    for_script,
    graph_data,
    graph_html,
    graph_markup,
    node_table,
    shown,
    static_text,
)
from embedl_graph._read import SUFFIXES, read_graph

__all__ = [
    "STATIC",
    "SUFFIXES",
    "Coloring",
    "GraphError",
    "Layer",
    "ModelGraph",
    "Node",
    "Shown",
    "Tensor",
    "compared",
    "error_coloring",
    "for_script",
    "graph_data",
    "graph_html",
    "graph_markup",
    "layer_colorings",
    "layer_numbers",
    "layers_of",
    "node_table",
    "precision_coloring",
    "read_graph",
    "shown",
    "static_text",
]

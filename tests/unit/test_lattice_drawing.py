"""The lattice of one sentence as JSON, Graphviz and SVG: what is in it and that it can be read."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import torch

from scripts.recipes.lattice.drawing import Record, dot, record, svg

SYMBOLS = ["<s>", "<pad>", "</s>", 'a "<&>\\ very long word', "b", "c"]


def make_record(incoming: int | None) -> Record:
    tokens = torch.tensor([[3, 4, 5], [4, 3, 1], [2, 1, 1]])
    own = torch.tensor(
        [[-0.5, -1.0, -2.0], [-0.25, -3.0, -torch.inf], [0.0, -torch.inf, -torch.inf]]
    )
    edges = torch.full((2, 3, 3), -torch.inf)
    edges[0, :, :2] = torch.tensor([[-1.0, -4.0], [-2.0, -5.0], [-3.0, -6.0]])
    edges[1, :2, 0] = torch.tensor([-1.5, -0.5])
    return record(tokens, own, edges, torch.tensor([2, 0, 0]), SYMBOLS.__getitem__, incoming)


def test_the_record_lists_candidates_edges_and_the_path() -> None:
    made = json.loads(json.dumps(make_record(None), allow_nan=False))
    assert [len(position["candidates"]) for position in made["positions"]] == [3, 2, 1]
    assert made["positions"][1]["candidates"][1] == {
        "index": 1,
        "token": 3,
        "symbol": SYMBOLS[3],
        "log_probability": -3.0,
        "best": False,
    }
    assert made["path"] == ["c", "b", "</s>"]
    assert len(made["edges"]) == 8
    best = [edge for edge in made["edges"] if edge["best"]]
    assert [(edge["position"], edge["from"], edge["to"], edge["score"]) for edge in best] == [
        (0, 2, 0, -3.0),
        (1, 0, 0, -1.5),
    ]


def test_only_the_best_edges_into_a_candidate_and_the_path_are_listed() -> None:
    edges = make_record(1)["edges"]
    assert [(edge["position"], edge["from"], edge["to"]) for edge in edges] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 2, 0),
        (1, 0, 0),
        (1, 1, 0),
    ]


def test_the_picture_is_xml_with_every_candidate_and_edge() -> None:
    made = make_record(None)
    picture = ElementTree.fromstring(svg(made))
    space = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{space}line")) == 8
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert texts == ['a "<&>\\ ver…', "b", "c", "b", 'a "<&>\\ ver…', "</s>"]
    bold = [line for line in picture.findall(f"{space}line") if line.get("stroke-width") == "2.5"]
    assert [line.findtext(f"{space}title") for line in bold] == ["-3.000", "-1.500"]


def test_the_graph_escapes_its_strings() -> None:
    graph = dot(make_record(1))
    assert r'c0_0 [label="a \"<&>\\ very long word\n-0.50"];' in graph
    assert 'c0_2 -> c1_0 [label="-3.00", fontsize=8, color="#b3261e", penwidth=2];' in graph
    assert graph.count("->") == 5
    assert graph.count("{") == graph.count("}") == 4

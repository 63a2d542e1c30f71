"""Faults that no single command shows: what comes of each, and the test that says so."""

EQUALITY, UNIT, PIPELINES = "tests/equality/test", "tests/unit/test", "tests/pipelines/test"
# Fault -> what comes of it, and its test.
ELSEWHERE = {
    "forged packed folders, at random, at every door": (
        "refused, or decoded",
        "tests/fuzz/test_packed.py::test_no_forged_folder_ends_the_process",
    ),
    "sizes that do not fit the bytes behind a pointer": (
        "refused by the compiled library too",
        f"{UNIT}_sizes.py",
    ),
    "none of our engines decodes a method that stock fairseq does not have": (
        "refused, with all reasons",
        f"{EQUALITY}_who_decodes.py::test_who_decodes",
    ),
    "stock fairseq decodes": (
        "a warning says why, once at every door",
        f"{PIPELINES}_doors_into_stock.py::test_the_door_says_its_line_once",
    ),
    "a mapped folder is overwritten under a running process": (
        "one sentence, no output",
        f"{EQUALITY}_one_state.py::test_a_folder_that_is_written_to_ends_decoding",
    ),
    "a folder is replaced while it is loaded": (
        "the outputs of one of the two models, or none",
        f"{EQUALITY}_one_state.py::test_a_folder_that_is_replaced_while_it_is_loaded",
    ),
    "a checkpoint in fp16 or bf16 is packed": (
        "packed, in fp32",
        f"{EQUALITY}_packed.py::test_checkpoints_in_half_precision_are_packed",
    ),
    "a row of an embedding is written past PyTorch": (
        "the next batch reads it",
        f"{UNIT}_watch.py::test_watch_sees_every_row_of_an_embedding",
    ),
    "scores of models with large logits": (
        "as near to those in fp64 as stock's",
        f"{EQUALITY}_large_logits.py::test_errors_of_scores_are_those_of_stock",
    ),
    "sentences with prefixes of their own ask a service": (
        "they share batches",
        f"{UNIT}_serve.py::test_prefixes_of_their_own_share_batches",
    ),
    "a limit of size ends bulk work": (
        "the output is named",
        f"{UNIT}_bulk_job.py::test_a_limit_of_size_is_told_with_the_output",
    ),
    "several processes decode one set": (
        "each sentence is decoded once",
        f"{PIPELINES}_shares.py::test_every_sentence_is_decoded_once_and_outputs_are_merged_by_the_printed_command",
    ),
    "special and added tokens in a text for a converted model": (
        "the ids of transformers",
        f"{EQUALITY}_whole_tokens.py::test_ids_are_those_of_transformers",
    ),
    "whole numbers of NumPy; another default device": (
        "used",
        f"{UNIT}_api.py::test_whole_numbers_of_numpy_and_another_default_device",
    ),
}


def table() -> str:
    rows = "\n".join(
        f"| {fault} | {what} | `{test}` |" for fault, (what, test) in ELSEWHERE.items()
    )
    return (
        "\n\n## Beside single commands\n\n"
        "| fault | what comes of it | test |\n|---|---|---|\n" + rows
    )

# SPDX-License-Identifier: Apache-2.0
"""flash-attn 2 and 3, parameter by parameter: what is documented, what happens here, which test
shows it.

`python -m tests.compat.semantics docs/flash_attn_semantics.md` writes the tables of the document.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.render.blocks import replace_block, table, wrap
from flash_attention.compat.drop_in import MODULES
from tests.compat.semantics_3 import PADDING, VERSION_3
from tests.compat.semantics_layers import PASSES, ROTARY
from tests.compat.semantics_row import EQUAL, Row

HEADER = ("parameter", "flash-attn documents", "here", "shown by")
EVERY_FUNCTION = (
    Row(
        "the signature",
        "names, order and defaults",
        EQUAL,
        ("test_names_order_and_defaults",),
    ),
    Row(
        "q, k, v",
        "(batch, seqlen, nheads, headdim); k and v have nheads_k heads",
        f"{EQUAL}; v may have another headdim; nested tensors raise",
        (
            "test_the_layout_is_batch_seq_heads_d_and_only_out_comes_back",
            "test_v_may_have_another_head_dimension",
            "test_nested_tensors_are_refused",
            "test_q_k_and_v_are_dense_tensors",
        ),
    ),
    Row(
        "grouped heads",
        "nheads is a multiple of nheads_k; with 6 and 2, heads 0, 1, 2 of q share head 0 of k"
        " and v",
        EQUAL,
        ("test_heads_are_shared_by_neighbours",),
    ),
    Row(
        "head dimension",
        "up to 256; its code pads to a multiple of 8 and keeps the scale, and copies a tensor whose"
        " last dimension is not contiguous",
        EQUAL,
        (
            "test_the_scale_is_that_of_the_head_dimension_before_padding",
            "test_a_last_dimension_that_is_not_contiguous_is_copied",
        ),
    ),
    Row(
        "dropout_p",
        "dropout probability, 0.0 in evaluation",
        "the same, rounded to 1/256, with other random numbers; `return_attn_probs` returns no"
        " pattern, which `flash_attention.dropout_mask` computes",
        ("test_dropout_follows_from_the_generator_in_every_function",),
    ),
    Row(
        "softmax_scale",
        "1 / sqrt(headdim) unless given",
        EQUAL,
        ("test_the_scale_is_that_of_the_head_dimension_before_padding",),
    ),
    Row(
        "causal",
        "aligned to the bottom right, as in the two matrices above",
        EQUAL,
        (
            "test_a_causal_mask_of_two_queries_and_five_keys_ends_at_the_last_key",
            "test_a_causal_mask_of_five_queries_and_two_keys_leaves_rows_without_keys",
        ),
    ),
    Row(
        "rows without a key",
        "the output is 0; the lse is not documented, and its kernels store +inf",
        "the output is 0; the lse is -inf, the logarithm of an empty sum",
        ("test_a_causal_mask_of_five_queries_and_two_keys_leaves_rows_without_keys",),
    ),
    Row(
        "window_size",
        "keys from i + seqlen_k - seqlen_q - left to i + seqlen_k - seqlen_q + right, both"
        " included; -1 is no limit; with causal, right is 0",
        f"{EQUAL}; two numbers in a list or a tensor too, as its code takes them",
        (
            "test_windows_include_both_ends",
            "test_a_window_may_be_a_tensor",
            "test_a_window_is_two_whole_numbers",
            "test_a_window_of_none_is_no_window",
        ),
    ),
    Row(
        "softcap",
        "anything above 0 bounds the scores: softcap tanh(score / softcap), after the scale",
        EQUAL,
        ("test_the_softcap_bounds_scaled_scores",),
    ),
    Row(
        "alibi_slopes",
        "(nheads,) or (batch, nheads), fp32: a bias by distance",
        f"{EQUAL}, for packed sequences and caches too; slopes have no gradient, as in its code."
        " Its causal kernels add slope j in place of the bias, so that its softmax_lse differs by"
        " one number in each row",
        (
            "test_biases_of_dense_tensors_and_their_gradients",
            "test_biases_of_packed_sequences",
            "test_biases_of_keys_and_values_in_one_tensor",
            "test_biases_with_a_cache",
            "test_biases_of_pages_are_for_all_gpus",
            "test_slopes_are_a_number_of_each_head",
        ),
    ),
    Row(
        "deterministic",
        "concerns the backward pass; the forward pass always is",
        EQUAL,
        (
            "test_the_forward_pass_is_deterministic_either_way",
            "test_the_backward_pass_is_told_to_be_deterministic",
        ),
    ),
    Row(
        "return_attn_probs",
        "(out, softmax_lse, S_dmask): softmax_lse is fp32 (batch, nheads, seqlen), S_dmask for"
        " testing only",
        f"(out, softmax_lse, None): {EQUAL}, and no probabilities are kept",
        ("test_return_attn_probs_adds_the_lse_and_no_probabilities",),
    ),
    Row(
        "the result",
        "only out, (batch, seqlen, nheads, headdim), in the dtype of q",
        EQUAL,
        ("test_the_layout_is_batch_seq_heads_d_and_only_out_comes_back",),
    ),
    Row(
        "the gradient",
        "there is a backward pass, except with a cache; where there is none, its code computes the"
        " result all the same, whatever requires grad",
        f"{EQUAL}; softmax_lse is differentiable too. Caches, pages and 8-bit tensors have no"
        " gradient: a backward pass through their results raises, and torch.compile refuses them if"
        " a tensor requires grad",
        (
            "test_gradients_are_those_of_torch",
            "test_a_cache_has_no_gradient",
            "test_new_keys_of_a_gradient_are_stored",
            "test_a_backward_pass_that_would_be_traced_is_refused",
            "test_pages_have_a_result_and_no_gradient",
            "test_tensors_of_8_bits_have_a_result_and_no_gradient",
        ),
    ),
    Row(
        "kv, qkv",
        "one tensor: (batch, seqlen, 2, nheads_k, headdim), (batch, seqlen, 3, nheads, headdim);"
        " packed sequences have no batch dimension",
        EQUAL,
        (
            "test_packed_tensors_are_split_before_the_heads",
            "test_packed_tensors_have_three_or_two_matrices",
            "test_gradients_of_one_tensor_are_one_tensor",
        ),
    ),
)

PACKED = (
    Row(
        "cu_seqlens_q, cu_seqlens_k, cu_seqlens",
        "(batch + 1,), int32: where each sequence starts in q, and in k and v",
        EQUAL,
        (
            "test_packed_sequences_are_attended_to_apart_and_the_lse_is_heads_by_total",
            "test_gradients_of_packed_sequences_are_those_of_each",
        ),
    ),
    Row(
        "max_seqlen_q, max_seqlen_k, max_seqlen",
        "int, the longest sequence of the batch",
        f"{EQUAL}; a tensor is read, which waits for the GPU; None raises `cu_seqlens_q is given"
        " without max_seqlen_q`",
        (
            "test_lengths_may_be_tensors_as_data_collators_make_them",
            "test_longest_lengths_are_needed",
            "test_longest_lengths_are_whole_numbers",
        ),
    ),
    Row(
        "softmax_lse",
        "(nheads, total_q)",
        EQUAL,
        (
            "test_packed_sequences_are_attended_to_apart_and_the_lse_is_heads_by_total",
            "test_gradients_of_packed_sequences_are_those_of_each",
        ),
    ),
    Row(
        "block_table",
        "in the signature but not documented; its kernels take k and v as (num_blocks,"
        " page_block_size, nheads_k, headdim), pages of a multiple of 256 keys, and the lengths"
        " from cu_seqlens_k",
        f"{EQUAL}; a page has any number of keys",
        (
            "test_packed_queries_of_pages",
            "test_columns_of_a_table_beyond_the_longest_entry_are_not_read",
            "test_pages_are_described_by_tensors",
            "test_pages_need_no_longest_length_of_keys",
            "test_kernels_agree_with_torch",
            "test_pages_up_to_the_longest_length_are_read",
        ),
    ),
)

WITH_A_CACHE = (
    Row(
        "k_cache, v_cache",
        "(batch_cache, seqlen_cache, nheads_k, headdim), or paged: (num_blocks, page_block_size,"
        " nheads_k, headdim)",
        EQUAL,
        (
            "test_a_cache_is_read_as_far_as_it_is_filled",
            "test_a_cache_in_pages_is_read_and_stored_to",
            "test_a_cache_has_as_many_values_as_keys",
            "test_a_cache_is_made_of_tensors",
            "test_rows_are_stored_in_caches_with_contiguous_columns",
            "test_queries_without_lengths_are_not_taken_for_packed_ones",
            "test_tensors_that_fitted_are_known_whatever_was_called_since",
        ),
    ),
    Row(
        "cache_seqlens",
        "int, or (batch,) int32: the number of valid keys; without it all keys are valid",
        EQUAL,
        (
            "test_a_cache_is_read_as_far_as_it_is_filled",
            "test_lengths_are_called_cache_seqlens",
            "test_the_sequences_of_a_cache_are_those_of_q",
            "test_one_length_serves_all_entries_and_none_is_the_whole_cache",
            "test_the_whole_cache_counts_where_no_length_is_given",
        ),
    ),
    Row(
        "k, v",
        "(batch, seqlen_new, nheads_k, headdim): stored in place from cache_seqlens on, then"
        " attended to; the cache must have room",
        f"{EQUAL}; cache_seqlens is required, and a kernel of its own stores the keys before that"
        " of attention runs",
        (
            "test_new_keys_are_stored_behind_the_filled_part_and_seen",
            "test_new_keys_come_with_values_lengths_and_the_shape_of_the_cache",
            "test_new_keys_are_stored_in_a_compiled_function_too",
        ),
    ),
    Row(
        "new keys without room",
        "the caller makes sure that the cache is large enough",
        "if the new keys of a sequence do not all fit, or their pages do not exist, the call raises"
        " where the host knows it: on the CPU, from the shapes, and if cache_seqlens is an int."
        " On a"
        " GPU nothing of that sequence is stored, its output is 0 and its softmax_lse is -inf; the"
        " other sequences are not affected",
        (
            "test_what_does_not_fit_is_refused_on_the_cpu_and_nothing_is_stored",
            "test_what_does_not_fit_is_neither_stored_nor_read_where_the_host_does_not_know",
            "test_what_the_host_knows_is_refused_on_every_device",
            "test_nothing_is_stored_where_nothing_fits",
            "test_nothing_is_stored_by_a_call_that_is_refused",
        ),
    ),
    Row(
        "lengths and pages that are not there",
        "version 2.8.3 does not check them; later code waits for the GPU in every call with pages,"
        " and raises if cache_seqlens and the new keys exceed the pages of block_table",
        "the call raises where the host knows it, as above. With the environment variable"
        " FLASH_ATTENTION_VALIDATE=1 every call waits for the GPU and raises, whatever the lengths"
        " and the tables are; but calls in a compiled function or a CUDA graph do not",
        (
            "test_the_environment_asks",
            "test_values_on_a_gpu_are_read_if_asked_and_not_while_a_graph_is_captured",
            "test_attention_is_asked_to_validate_unless_it_is_traced",
            "test_what_does_not_fit_is_refused_on_a_gpu_if_asked",
            "test_lengths_beyond_a_table_on_a_gpu_are_refused_if_asked",
            "test_packed_sequences_on_a_gpu_are_checked_and_graphs_are_captured",
        ),
    ),
    Row(
        "rotary_cos, rotary_sin, rotary_interleaved",
        "(seqlen_ro, rotary_dim / 2), rotary_dim a multiple of 16: rotate the new k from position"
        " cache_seqlens on, and q from there on with a mask, else at that position; its code wants"
        " seqlen_ro to be seqlen_cache at least",
        f"{EQUAL}; a sequence some of whose queries have positions beyond seqlen_ro counts as one"
        " without room",
        (
            "test_new_keys_and_queries_are_rotated",
            "test_rotary_embeddings_fit_the_new_keys",
            "test_columns_may_be_apart",
            "test_a_captured_step_follows_lengths_and_keys_that_change",
            "test_kernels_agree_with_torch",
            "test_positions_end_with_the_tables",
            "test_tables_have_a_row_for_every_key_that_fits_into_the_pages",
            "test_first_positions_are_a_number_of_each_sequence",
        ),
    ),
    Row(
        "cache_batch_idx",
        "(batch,) int32: the row of the cache that belongs to each sequence of q",
        f"{EQUAL}, without a copy",
        (
            "test_entries_of_a_cache_are_those_that_the_index_names",
            "test_new_keys_go_to_the_entries_that_the_index_names",
        ),
    ),
    Row(
        "cache_leftpad",
        "(batch,) int32: the position at which the keys of a sequence start",
        f"{EQUAL}; the sequences of the cache must be contiguous",
        (
            "test_keys_start_behind_the_left_padding",
            "test_left_padded_entries_lie_side_by_side",
            "test_left_padding_ends_with_the_keys",
            "test_left_padding_is_a_number_of_each_sequence",
            "test_one_left_padded_entry_may_be_part_of_a_longer_one",
        ),
    ),
    Row(
        "block_table",
        "(batch, max_num_blocks_per_seq) int32; page_block_size is a multiple of 256",
        f"{EQUAL}; a page has any number of keys",
        (
            "test_a_cache_in_pages_is_read_and_stored_to",
            "test_the_whole_cache_counts_where_no_length_is_given",
            "test_pages_of_a_cache_in_full_use_exist",
            "test_a_table_of_one_column_may_have_any_stride",
            "test_pages_without_rows_hold_no_keys",
        ),
    ),
    Row(
        "two of them together",
        "its kernels refuse pages with cache_batch_idx or cache_leftpad",
        "any of block_table, cache_batch_idx and cache_leftpad go together: the index names a row"
        " of the table, and behind padding each key is read as a page of its own, for which the"
        " cache must have no gaps between its entries",
        (
            "test_a_cache_is_described_in_several_ways",
            "test_a_cache_is_described_by_rows_of_integers",
        ),
    ),
    Row(
        "num_splits",
        "0: a heuristic; 1: the keys are not split; more: the number of splits",
        f"{EQUAL}; splits are whole numbers of 64 keys, so that there may be fewer, and keys are"
        " split without biases, for few queries, whose rows of heads that share keys fit in 64",
        (
            "test_splits_divide_all_keys",
            "test_new_keys_are_split_too",
            "test_splits_are_a_number",
        ),
    ),
    Row(
        "return_softmax_lse",
        "(out, softmax_lse), softmax_lse (batch, nheads, seqlen)",
        EQUAL,
        ("test_a_cache_is_read_as_far_as_it_is_filled", "test_keys_start_behind_the_left_padding"),
    ),
)

TABLES = {
    "every-function": EVERY_FUNCTION,
    "packed": PACKED,
    "with-a-cache": WITH_A_CACHE,
    "version-3": VERSION_3,
    "padding": PADDING,
    "rotary": ROTARY,
    "passes": PASSES,
}


def modules_block() -> str:
    """The modules that `install` provides, as they stand in the document."""
    rows = (
        (f"`{module}`", ", ".join(f"`{name}`" for name in sorted(names) if name[:2] != "__"))
        for module, names in MODULES.items()
        if names
    )
    return wrap("modules", table(("module", "what is in it"), rows, left=2))


def block(name: str, rows: Sequence[Row]) -> str:
    """A table as it stands in the document."""
    return wrap(name, table(HEADER, (row.cells() for row in rows), left=len(HEADER)))


if __name__ == "__main__":
    document = Path(sys.argv[1])
    text = replace_block(document.read_text(), "modules", modules_block())
    for name, rows in TABLES.items():
        text = replace_block(text, name, block(name, rows))
    document.write_text(text)

# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3 and the functions for padding: what they have beside flash-attn 2."""

from __future__ import annotations

from tests.compat.semantics_row import EQUAL, Row

VERSION_3 = (
    Row(
        "the signatures",
        "names, order and defaults of flash_attn_interface.py",
        EQUAL,
        ("test_names_order_and_defaults_of_version_3",),
    ),
    Row(
        "what both versions have",
        "as above; there is no dropout_p, alibi_slopes or block_table in the signatures",
        EQUAL,
        (
            "test_dense_tensors_of_version_3",
            "test_packed_sequences_of_version_3",
            "test_a_cache_of_version_3",
        ),
    ),
    Row(
        "results with return_attn_probs, return_softmax_lse",
        "(out, softmax_lse); with a cache its code adds the outputs of splits",
        f"{EQUAL}; with a cache (out, softmax_lse, None, None): no partial results are kept",
        ("test_dense_tensors_of_version_3", "test_a_cache_of_version_3"),
    ),
    Row(
        "qkv, num_heads_q",
        "(batch, seqlen, 3, nheads, headdim), or with num_heads_q (batch, seqlen, num_heads_q +"
        " 2 nheads_k, headdim)",
        EQUAL,
        ("test_one_tensor_of_version_3",),
    ),
    Row(
        "seqused_k",
        "(batch,) int32, in its code: the number of valid keys of each packed sequence",
        EQUAL,
        ("test_packed_sequences_of_version_3",),
    ),
    Row(
        "seqused_q",
        "(batch,) int32, in its code: the number of valid queries of each packed sequence",
        f"{EQUAL}; the output of the other queries is 0 and their softmax_lse -inf",
        (
            "test_queries_of_version_3_that_are_not_used_are_left_out",
            "test_a_gpu_leaves_out_queries_that_are_not_used",
            "test_gradients_of_version_3_leave_out_queries_that_are_not_used",
            "test_used_queries_of_version_3_are_some_of_a_sequence",
            "test_queries_that_are_not_used_leave_every_sequence_its_keys_and_factors",
        ),
    ),
    Row(
        "num_splits",
        "0: a heuristic; 1: the keys are not split, the default without a cache; more: the"
        " number of"
        " splits",
        "as above",
        ("test_splits_of_version_3_divide_all_keys",),
    ),
    Row(
        "pack_gqa",
        "can be tuned for speed: whether heads that share keys share a tile",
        "changes nothing: the library chooses",
        ("test_dense_tensors_of_version_3",),
    ),
    Row(
        "deterministic",
        "concerns the backward pass; the forward pass always is",
        EQUAL,
        ("test_gradients_of_version_3_are_those_of_torch",),
    ),
    Row(
        "qv",
        "(batch, seqlen, nheads, headdim_v): the product with v is added to the scores",
        "only None; a value raises `pass torch.cat((q, qv), -1) for q and torch.cat((k, v), -1)"
        " for k`",
        (
            "test_what_version_3_has_more_is_refused",
            "test_a_second_product_of_scores_is_a_longer_head",
        ),
    ),
    Row(
        "q_descale, k_descale, v_descale",
        "(batch, nheads_k): scales of fp8 tensors; None is 1",
        "equal; q may have 16 bits beside k and v of e4m3; a factor of a 16-bit tensor raises `only"
        " torch.float8_e4m3fn tensors have descale factors`, and caches of e4m3 are not rotated",
        (
            "test_what_version_3_has_more_is_refused",
            "test_keys_and_values_are_multiplied_by_their_factors",
            "test_packed_sequences_have_their_own_factors",
            "test_a_cache_stores_new_rows_of_8_bits",
            "test_rows_of_8_bits_are_not_rotated",
            "test_an_odd_row_is_refused",
            "test_factors_have_no_gradient",
            "test_the_kernel_stores_pairs_as_torch_does",
            "test_tensors_of_8_bits_are_multiplied_by_their_descale_factors",
        ),
    ),
    Row(
        "attention_chunk",
        "in its code: 0, or the length of chunks that attend only to themselves",
        "only 0; other values raise `pass each chunk as a sequence of its own`",
        ("test_what_version_3_has_more_is_refused",),
    ),
    Row(
        "sm_margin",
        "the number of multiprocessors that are left to other kernels",
        "only 0; other values raise `kernels take the whole GPU here`",
        ("test_what_version_3_has_more_is_refused",),
    ),
    Row(
        "page_table",
        "(batch, max_num_blocks_per_seq) int32: block_table of version 2; pages of any size",
        EQUAL,
        ("test_a_cache_of_version_3",),
    ),
    Row(
        "cu_seqlens_q, max_seqlen_q",
        "with a cache, in its code: q is packed",
        EQUAL,
        ("test_a_cache_of_version_3",),
    ),
    Row(
        "rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens",
        "rotate q and the new k; in its code rotary_seqlens, (batch,) int32, are the positions of"
        " the first new keys instead of cache_seqlens, and mean nothing without rotary_cos",
        EQUAL,
        (
            "test_positions_mean_nothing_without_angles",
            "test_keys_of_version_3_are_rotated",
            "test_packed_queries_of_version_3_are_rotated_at_their_positions",
        ),
    ),
    Row(
        "cu_seqlens_k_new",
        "(batch + 1,) int32, in its code: where the new keys of each sequence start in k and v,"
        " which are (total_new, nheads_k, headdim)",
        f"{EQUAL}; with any description of the cache, and q packed or not",
        (
            "test_packed_new_keys_are_those_of_each_sequence",
            "test_emulated_kernels_take_packed_new_keys",
            "test_packed_new_keys_may_have_8_bits",
            "test_packed_new_keys_that_do_not_fit_are_not_stored",
            "test_packed_new_keys_are_stored_in_a_compiled_function_too",
            "test_packed_new_keys_are_described_by_their_starts",
            "test_a_captured_step_follows_packed_new_keys_that_change",
        ),
    ),
    Row(
        "scheduler_metadata",
        "what get_scheduler_metadata returned",
        "only None; a value raises `tiles are scheduled by the kernels here`; so does"
        " get_scheduler_metadata",
        (
            "test_what_a_cache_of_version_3_has_more_is_refused",
            "test_the_kernels_schedule_their_tiles",
        ),
    ),
    Row(
        "out_partial, lse_partial, out, out_dtype",
        "flash_attn_combine, undocumented: in its code out_partial is fp32 (num_splits, batch,"
        " seqlen, nheads, headdim), lse_partial fp32 (num_splits, batch, seqlen, nheads), out_dtype"
        " fp32 unless given; it returns (out, softmax_lse), softmax_lse (batch, seqlen, nheads)",
        f"{EQUAL}; any number of parts (`flash_attention.merge` takes outputs in 16 bits too)",
        ("test_parts_are_combined", "test_what_cannot_be_combined_is_refused"),
    ),
)

PADDING = (
    Row(
        "hidden_states, attention_mask, unused_mask",
        "unpad_input: the rows that the mask keeps, their indices, cu_seqlens, the longest length,"
        " and how many rows of each sequence attention_mask keeps",
        EQUAL,
        (
            "test_padding_is_taken_out_and_put_back",
            "test_rows_without_use_are_packed_and_not_counted",
        ),
    ),
    Row(
        "indices, batch, seqlen",
        "pad_input: the inverse, zeros elsewhere",
        EQUAL,
        ("test_padding_is_taken_out_and_put_back",),
    ),
    Row(
        "attention_mask_in_length",
        "unpad_input_for_concatenated_sequences: a row of the mask begins with the lengths of the"
        " sequences in a row",
        EQUAL,
        ("test_rows_that_hold_several_sequences_are_packed_by_their_lengths",),
    ),
    Row(
        "input, values, first_axis_dim",
        "index_first_axis, index_first_axis_residual, index_put_first_axis: rows by their indices",
        EQUAL,
        ("test_rows_are_taken_and_put_with_gradients",),
    ),
)

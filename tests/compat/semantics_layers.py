# SPDX-License-Identifier: Apache-2.0
"""flash-attn's passes and its rotary layers, parameter by parameter."""

from __future__ import annotations

from tests.compat.semantics_row import EQUAL, Row

DENSE = "test_a_pass_of_dense_tensors_and_its_gradients"
PACKED = "test_a_pass_of_packed_sequences_and_its_gradients"
REFUSED = "test_what_is_not_supported_is_refused_before_anything_is_written"
PASSES = (
    Row(
        "the signatures",
        "names, order and defaults of `_flash_attn_forward`, `_flash_attn_backward`,"
        " `_flash_attn_varlen_forward`, `_flash_attn_varlen_backward` in version 2.8.3;"
        " `_wrapped_...` are the same as operators",
        f"{EQUAL}; `_wrapped_...` are the same functions, and torch.compile traces them",
        ("test_names_order_and_defaults_of_passes", "test_a_compiled_pass_is_one_graph"),
    ),
    Row(
        "q, k, v, softmax_scale, causal, window_size_left, window_size_right, softcap",
        "as in the functions that call the passes",
        EQUAL,
        (DENSE, PACKED),
    ),
    Row(
        "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, block_table, seqused_k",
        "packed sequences, pages of keys, and how many keys of each sequence are used",
        EQUAL,
        (PACKED, "test_keys_that_are_not_used_and_pages"),
    ),
    Row(
        "dropout_p, rng_state",
        "dropout, and what it drew, from the forward to the backward pass",
        "the same, with other random numbers",
        ("test_the_state_of_dropout_goes_from_pass_to_pass",),
    ),
    Row(
        "alibi_slopes",
        "a bias by distance",
        EQUAL,
        ("test_biases_in_both_passes",),
    ),
    Row(
        "return_softmax, leftpad_k, zero_tensors",
        "the pattern of dropout, left padding of pages, and zeros in outputs first",
        "only None and False; other values raise",
        (REFUSED,),
    ),
    Row(
        "the result of a forward pass",
        "(out, softmax_lse, S_dmask, rng_state)",
        f"{EQUAL}: S_dmask is empty, rng_state 0 without dropout; autograd records nothing",
        (DENSE, PACKED),
    ),
    Row(
        "dout, out, softmax_lse",
        "the gradient of the output, the output and its log-sum-exp, which may be those of more"
        " keys than k and v have, as where GPUs share a sequence",
        EQUAL,
        (DENSE, PACKED, "test_parts_of_the_keys_make_the_whole"),
    ),
    Row(
        "dq, dk, dv",
        "where gradients are stored",
        f"{EQUAL}; one that is None is not computed",
        (DENSE, PACKED, "test_gradients_that_are_not_wanted_are_left_out", REFUSED),
    ),
    Row(
        "deterministic",
        "gradients with the same bits in every run",
        EQUAL,
        (PACKED,),
    ),
    Row(
        "the result of a backward pass",
        "softmax_d, not documented; its kernels store the sums of dout out, padded to blocks of 128"
        " rows",
        EQUAL,
        (DENSE, PACKED),
    ),
)

TURN = "test_rows_turn_by_the_angles_of_their_positions"
GRADIENTS = ("test_gradients_are_rotated_back", "test_gradients_of_gradients")
ROTARY = (
    Row(
        "x, cos, sin, interleaved, conjugate",
        "apply_rotary, apply_rotary_emb: pairs of the first rotary_dim columns turn, in fp32;"
        " conjugate turns them back",
        EQUAL,
        (TURN, "test_angles_that_do_not_fit_are_refused"),
    ),
    Row(
        "seqlen_offsets, seqlen_offset",
        "the position of the first row, int or (batch,)",
        f"{EQUAL}; a row whose position has no angles is not rotated, as by its kernel",
        (TURN, "test_a_row_without_angles_is_not_rotated"),
    ),
    Row(
        "cu_seqlens, max_seqlen",
        "packed sequences, (total, nheads, headdim)",
        f"{EQUAL}; rows that belong to no sequence stay as they are",
        ("test_packed_rows_start_at_their_sequence", "test_angles_that_do_not_fit_are_refused"),
    ),
    Row(
        "inplace",
        "the result is stored in x",
        f"{EQUAL}, also in one of several views",
        (TURN, *GRADIENTS),
    ),
    Row(
        "gradients",
        "of x, and of what is rotated in place",
        f"{EQUAL}, and gradients of gradients",
        (*GRADIENTS, "test_qkv_and_kv_in_place"),
    ),
    Row(
        "qkv, kv, cos_k, sin_k, num_heads_q",
        "apply_rotary_emb_qkv_, apply_rotary_emb_kv_: q and k in one tensor, in place, with angles"
        " of their own; (batch, seqlen, nheads_q + 2 nheads_k, headdim) needs num_heads_q",
        EQUAL,
        ("test_qkv_and_kv_in_place", "test_shapes_that_are_refused"),
    ),
    Row(
        "rotate_half, apply_rotary_emb_torch",
        "the same in the precision of the tensors",
        EQUAL,
        ("test_a_rotation_in_the_precision_of_torch",),
    ),
    Row(
        "dim, base, scale_base, device",
        "RotaryEmbedding: the angles of every position, computed in fp32 and kept; scale_base is"
        " XPos",
        EQUAL,
        (
            "test_the_module_turns_q_and_k",
            "test_scales_of_xpos_cancel_between_q_and_k",
            "test_angles_stay_exact_in_a_model_of_16_bits",
        ),
    ),
)

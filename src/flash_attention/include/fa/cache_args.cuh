// SPDX-License-Identifier: Apache-2.0
// The run-time arguments of the kernel that updates a KV cache. cache_args.py mirrors them; every unit
// asserts that.
#pragma once
#include <fa/core.cuh>

namespace fa {

// An entry is a row of the cache's first dimension: a page, or all rows of one sequence.
struct CacheKernelArgs {
  const void* q;    // to be rotated, with a rotary embedding
  const void* k;    // new rows, [batch, new_rows, heads_k, d_qk], or packed, [rows, heads_k, d_qk]
  const void* v;    // the same with d_v
  void* rotated_q;  // like q
  void* k_cache;    // [entries, entry_rows, heads_k, d_qk]
  void* v_cache;    // [entries, entry_rows, heads_k, d_v]
  const void* cos;  // [rotary_rows, rotary_dim / 2]
  const void* sin;
  const int* cu_seqlens_q;  // [batch + 1], where packed sequences of q start; null if not packed
  const int* cu_seqlens_k_new;  // [batch + 1], the same for the new rows
  const int* seqlens;           // [batch], rows in use before; null: all_in_use
  const int* rotary_seqlens;    // [batch], the position of the first new row; null: seqlens
  const int* table;             // [table_rows, ...], the entries of a sequence; null: it has one
  const int* index;             // [batch], the row of the table, or the entry; null: its own number
  const int* leftpad;           // [batch], rows before the first key; null: none
  int* used;                    // [batch], keys of a sequence, with the new ones
  int* starts;     // [batch + 1], the first key, of all rows of the cache; null if not asked
  int* own_table;  // [batch, ...], the pages of each sequence's keys; null if not asked
  Strides q_stride, rotated_q_stride, k_stride, v_stride, k_cache_stride, v_cache_stride;
  i64 table_stride, own_table_stride, cos_stride, sin_stride;
  int heads, heads_k, seq_len_q;
  int d_qk, d_v;
  int new_rows, all_in_use;
  int entries, entry_rows, table_rows;
  int max_rows;       // of a sequence
  int own_page_rows;  // of own_table
  int rotary_dim, rotary_rows;
  int one_position;  // 1: all queries of a sequence have the position of the first
};

}  // namespace fa

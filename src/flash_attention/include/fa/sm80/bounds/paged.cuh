// SPDX-License-Identifier: Apache-2.0
// As Guarded, with keys in pages of `PageKeys` rows.
#pragma once
#include <fa/sm80/bounds/guarded.cuh>
#include <fa/sm80/paged_rows.cuh>

namespace fa::sm80::bounds {

template <int PageKeys>
struct Paged {
  template <class Config>
  class Scope : public Guarded::Scope<Config> {
    using Base = Guarded::Scope<Config>;
    using Keys = PagedRows<Config, PageKeys>;

   public:
    using Base::Base;

    __device__ Keys k() const {
      return keys(this->args_.k, this->args_.k_stride, this->args_.d_qk);
    }
    __device__ Keys v() const { return keys(this->args_.v, this->args_.v_stride, this->args_.d_v); }

   private:
    __device__ Keys keys(const void* first, const Strides& stride, int columns) const {
      const int* const table =
          this->args_.block_table + blockIdx.z * this->args_.block_table_stride;
      return {first,   stride,           table, this->kv_head_, this->sequence_.k_len,
              columns, this->args_.pages};
    }
  };
};

}  // namespace fa::sm80::bounds

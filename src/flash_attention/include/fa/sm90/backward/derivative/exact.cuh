// SPDX-License-Identifier: Apache-2.0
// dS = P (dP - delta) with P in fp32, which needs registers of its own.
#pragma once
#include <fa/sm90/backward/derivative/kept.cuh>

namespace fa::sm90::backward {

template <class Math>
struct ExactP {
  typename Math::Scores s;

  __device__ void keep(const typename Math::Scores& p) { s = p; }
  __device__ void keep(const typename Math::Pairs&) {}
  __device__ float p(int j, int e) const { return s.v[0][j][e]; }
};

namespace derivative {

struct Exact : WithKeptP<ExactP> {};

}  // namespace derivative
}  // namespace fa::sm90::backward

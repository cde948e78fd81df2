// A residual addition and its norm in one pass, and the derivatives of both in another.
//
// For each row: x ← x + added, and normed = (x − mean)·factor·weight + bias, where factor is one
// over the standard deviation; an RMS norm has mean 0. Axes: N rows, E width.
#pragma once

#include "element.h"
#include "norm.h"
#include "system.h"
#include "threads.h"

namespace regard::REGARD_SET {

constexpr int64_t NORM_ROWS = 64;  // rows of a task, and of a partial sum over rows

// A row of a tensor that may be missing.
template <class Number>
REGARD_INLINE Number *row_of(Number *tensor, int64_t row, int64_t width) {
  return tensor ? tensor + row * width : nullptr;
}

// Computes the sum x + added of a row, and its mean and factor.
template <class Element>
REGARD_INLINE void add_and_measure(Element element, const regard_residual_norm &call, int64_t row) {
  const float *x = call.x + row * call.width;
  float *sum_of_both = row_of(call.sum, row, call.width);
  const auto *added = row_of((const typename Element::type *)call.added, row, call.width);
  floats total = {}, squares = {};
  for (int64_t i = 0; i < call.width; i += LANES) {
    const int64_t count = call.width - i;
    floats at = widen_part(Float32(), x + i, count);
    if (added) {
      at += widen_part(element, added + i, count);
      narrow_part(Float32(), sum_of_both + i, at, count);
    }
    total += at;
  }
  const float *stream = added ? sum_of_both : x;
  const float mean = call.rms ? 0 : sum(total) / float(call.width);
  for (int64_t i = 0; i < call.width; i += LANES) {
    const int64_t count = call.width - i;
    const floats at = first_lanes(widen_part(Float32(), stream + i, count) - mean, count);
    squares += at * at;
  }
  call.mean[row] = mean;
  call.factor[row] = 1 / sqrtf(sum(squares) / float(call.width) + float(call.epsilon));
}

template <class Element>
REGARD_INLINE void store_normed(Element element, const regard_residual_norm &call, int64_t row) {
  const float *stream = (call.added ? call.sum : call.x) + row * call.width;
  auto *normed = (typename Element::type *)call.normed + row * call.width;
  for (int64_t i = 0; i < call.width; i += LANES) {
    const int64_t count = call.width - i;
    floats at = (widen_part(Float32(), stream + i, count) - call.mean[row]) * call.factor[row];
    at *= widen_part(Float32(), call.weight + i, count);
    if (call.bias) at += widen_part(Float32(), call.bias + i, count);
    narrow_part(element, normed + i, at, count);
  }
}

template <class Element>
int residual_norm(const regard_residual_norm &call) {
  const int64_t tasks = (call.rows + NORM_ROWS - 1) / NORM_ROWS;
  return for_each_task(int(call.threads), tasks, 0, [&](int64_t task, void *) {
    const int64_t last = min(call.rows, (task + 1) * NORM_ROWS);
    for (int64_t row = task * NORM_ROWS; row < last; row++) {
      add_and_measure(Element(), call, row);
      store_normed(Element(), call, row);
    }
  });
}

// The gradients of a row; its contributions to those of weight and bias are added to the task's
// sums.
template <class Element>
REGARD_INLINE void row_gradients(Element element, const regard_residual_norm_gradients &call,
                                 int64_t row, float *weight_sums, float *bias_sums) {
  using Number = typename Element::type;
  const int64_t at_row = row * call.width;
  const float mean = call.mean[row], factor = call.factor[row];
  const float *x = call.x + at_row, *sum_gradient = row_of(call.sum_gradient, row, call.width);
  const auto *normed_gradient = (const Number *)call.normed_gradient + at_row;
  auto *added_gradient = row_of((Number *)call.added_gradient, row, call.width);
  floats along = {}, total = {};  // of the gradient before the weight: its part along x, its sum
  for (int64_t i = 0; i < call.width; i += LANES) {
    const int64_t count = call.width - i;
    const floats at = (widen_part(Float32(), x + i, count) - mean) * factor;
    const floats gradient = widen_part(element, normed_gradient + i, count);
    store(weight_sums + i, load(weight_sums + i) + gradient * at);
    store(bias_sums + i, load(bias_sums + i) + gradient);
    const floats weighted = gradient * widen_part(Float32(), call.weight + i, count);
    along += weighted * at;
    total += weighted;
  }
  const float share = sum(along) / float(call.width);
  const float shift = call.rms ? 0 : sum(total) / float(call.width);
  for (int64_t i = 0; i < call.width; i += LANES) {
    const int64_t count = call.width - i;
    const floats at = (widen_part(Float32(), x + i, count) - mean) * factor;
    const floats weighted = widen_part(element, normed_gradient + i, count) *
                            widen_part(Float32(), call.weight + i, count);
    floats gradient = (weighted - shift - at * share) * factor;
    keep_in_register(gradient);  // rounded as when autograd adds the two
    if (sum_gradient) gradient += widen_part(Float32(), sum_gradient + i, count);
    narrow_part(Float32(), call.x_gradient + at_row + i, gradient, count);
    if (added_gradient) narrow_part(element, added_gradient + i, gradient, count);
  }
}

// Sums over the tasks, in order.
static void add_tasks(const float *sums, int64_t tasks, int64_t stride, int64_t width,
                      float *result) {
  for (int64_t i = 0; i < width; i += LANES) {
    floats total = load(sums + i);
    for (int64_t task = 1; task < tasks; task++) total += load(sums + task * stride + i);
    narrow_part(Float32(), result + i, total, width - i);
  }
}

template <class Element>
int residual_norm_backward(const regard_residual_norm_gradients &call) {
  const int64_t tasks = (call.rows + NORM_ROWS - 1) / NORM_ROWS;
  const int64_t padded = (call.width + LANES - 1) / LANES * LANES, stride = 2 * padded;
  const size_t bytes = size_t(tasks * stride) * sizeof(float);
  float *sums = (float *)system::allocate(64, (bytes / 64 + 1) * 64);
  if (!sums) return REGARD_OUT_OF_MEMORY;
  const int result = for_each_task(int(call.threads), tasks, 0, [&](int64_t task, void *) {
    float *own = sums + task * stride;
    for (int64_t i = 0; i < stride; i += LANES) store(own + i, floats{});
    const int64_t last = min(call.rows, (task + 1) * NORM_ROWS);
    for (int64_t row = task * NORM_ROWS; row < last; row++)
      row_gradients(Element(), call, row, own, own + padded);
  });
  if (result == REGARD_DONE) {
    add_tasks(sums, tasks, stride, call.width, call.weight_gradient);
    if (call.bias_gradient) add_tasks(sums + padded, tasks, stride, call.width, call.bias_gradient);
  }
  system::release(sums);
  return result;
}

}  // namespace regard::REGARD_SET

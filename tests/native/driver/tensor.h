// Tensors in blocks of exactly their size, so that a sanitizer sees the first byte beyond.
#pragma once

#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "numbers.h"

namespace driver {

constexpr char GAP_BYTE = char(0xff);  // the bytes between rows: NaN in every dtype

// How the rows lie in memory.
enum class Layout { plain, transposed, gaps, shared };  // shared: one entry for the whole batch

class Tensor {
 public:
  Tensor(int64_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t dim, Layout layout)
      : dtype(dtype), shape{batch, heads, rows, dim} {
    const int64_t row = dim + (layout == Layout::gaps ? 3 : 0);
    if (layout == Layout::transposed)
      strides = {heads * rows * row, row, heads * row};
    else
      strides = {layout == Layout::shared ? 0 : heads * rows * row, rows * row, row};
    bool empty = dim == 0;
    count = dim;
    for (int axis = 0; axis < 3; axis++) {
      empty |= shape[axis] == 0;
      count += (shape[axis] - 1) * strides[axis];
    }
    if (empty) count = 0;
    memory.reset(new char[size_t(size())]);
    std::memset(memory.get(), GAP_BYTE, size_t(size()));
  }

  template <class Make>  // make(b, h, i, d)
  void fill(Make make) {
    for (int64_t b = 0; b < shape[0]; b++)
      for (int64_t h = 0; h < shape[1]; h++)
        for (int64_t i = 0; i < shape[2]; i++)
          for (int64_t d = 0; d < shape[3]; d++) encode(dtype, place(b, h, i, d), make(b, h, i, d));
  }

  double at(int64_t b, int64_t h, int64_t i, int64_t d) const {
    return decode(dtype, place(b, h, i, d));
  }
  regard_tensor view() const { return {memory.get(), strides[0], strides[1], strides[2]}; }
  std::string_view bytes() const { return {memory.get(), size_t(size())}; }

  // Whether what lies between the rows is as it was.
  bool gaps_untouched() const {
    std::vector<bool> ours(size_t(size()), false);
    for (int64_t b = 0; b < shape[0]; b++)
      for (int64_t h = 0; h < shape[1]; h++)
        for (int64_t i = 0; i < shape[2]; i++)
          for (int64_t at = 0; at < shape[3] * bytes_of(dtype); at++)
            ours[size_t(place(b, h, i, 0) - memory.get() + at)] = true;
    for (int64_t at = 0; at < size(); at++)
      if (!ours[size_t(at)] && memory[size_t(at)] != GAP_BYTE) return false;
    return true;
  }

 private:
  char *place(int64_t b, int64_t h, int64_t i, int64_t d) const {
    return memory.get() + (b * strides[0] + h * strides[1] + i * strides[2] + d) * bytes_of(dtype);
  }

  int64_t size() const { return count * bytes_of(dtype); }

  int64_t dtype, shape[4], count;
  std::vector<int64_t> strides;
  std::unique_ptr<char[]> memory;
};

// Plain numbers in a block of exactly their size; none unless `count` is above 0.
template <class T>
class Numbers {
 public:
  Numbers() = default;
  explicit Numbers(int64_t count) : count(count), memory(new T[size_t(count)]()) {}
  T *data() const { return memory.get(); }
  T &operator[](int64_t i) const {
    if (i < 0 || i >= count) throw std::out_of_range("the driver's own mistake");
    return memory[size_t(i)];
  }
  explicit operator bool() const { return bool(memory); }
  int64_t size() const { return count; }
  std::string_view bytes() const { return {(const char *)data(), size_t(count) * sizeof(T)}; }

 private:
  int64_t count = 0;
  std::unique_ptr<T[]> memory;
};

}  // namespace driver

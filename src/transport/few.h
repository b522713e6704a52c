// An array whose length is given when it is made, and that takes no memory of its own for one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace ropewalk::transport {

/// Elements do not move. @pre T has a default constructor
template <typename T>
class Few {
 public:
  explicit Few(std::size_t count)
      : several_(count > 1 ? std::make_unique<T[]>(count) : nullptr), count_(count) {}
  ~Few() = default;
  Few(const Few&) = delete;
  Few& operator=(const Few&) = delete;
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::span<T> all() noexcept { return {several_ ? several_.get() : &only_, count_}; }
  [[nodiscard]] std::span<const T> all() const noexcept {
    return {several_ ? several_.get() : &only_, count_};
  }

 private:
  T only_{};
  std::unique_ptr<T[]> several_;
  std::size_t count_;
};

}  // namespace ropewalk::transport

// What takes long to make, and is made when it is first used.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace ropewalk::tune {

/// Threads: one at a time.
template <typename T>
class WhenNeeded {
 public:
  WhenNeeded() = default;
  template <typename Make>
  WhenNeeded& operator=(Make make) {
    make_ = std::move(make);
    made_ = nullptr;
    return *this;
  }
  /// Whether there is nothing to make.
  bool operator==(std::nullptr_t) const noexcept { return make_ == nullptr; }
  T* operator->() {
    if (made_ == nullptr) made_ = make_();
    return made_.get();
  }

 private:
  std::function<std::unique_ptr<T>()> make_;
  std::unique_ptr<T> made_;
};

}  // namespace ropewalk::tune

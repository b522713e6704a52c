#include "message/helping.h"

#include "message/messenger.h"

namespace ropewalk::message {

void Helping::until(const std::function<bool()>& done, std::chrono::steady_clock::time_point last) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && messenger_ != nullptr) messenger_->help(done, last);
}

void Helping::end() {
  const std::lock_guard lock(mutex_);
  messenger_ = nullptr;
}

}  // namespace ropewalk::message

// Operations that were prepared once and are started together, any number of times.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>

#include "message/operation.h"

namespace ropewalk::message {

struct DeviceBatch;
struct StreamBatch;

/// They start in the order in which they were added. A wait for signals, or a flush, holds back
/// those after it; nothing else does. Each launch sends the data that the sources hold then.
///
/// Threads: as the messenger that runs it.
class Batch {
 public:
  /// @pre not running(); Messenger::validate() accepts it
  void add(const OperationSpec& spec) {
    operations_.emplace_back(spec);
    on_device_.reset();
    on_stream_.reset();
  }

  [[nodiscard]] std::size_t size() const noexcept { return operations_.size(); }
  /// Launched, and not ended.
  [[nodiscard]] bool running() const noexcept { return running_.load(std::memory_order_acquire); }

 private:
  friend class Messenger;
  std::deque<Operation> operations_;  // which cannot be moved
  std::size_t next_ = 0;              // to be started
  bool begun_ = false;                // the one at next_, which holds back the others
  std::atomic<bool> running_{false};
  std::shared_ptr<const DeviceBatch> on_device_;  // as kernels launch it, once it was asked for
  std::shared_ptr<const StreamBatch> on_stream_;  // as streams do, once one did; null: one by one
};

}  // namespace ropewalk::message

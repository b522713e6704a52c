// A DMA queue of the library: one transfer at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "core/pacer.h"
#include "transport/window/sisci/segment.h"

namespace ropewalk::transport::window::sisci {

/// Threads: one at a time.
class Queue {
 public:
  /// @return null, with the status, when the library has none left
  static std::unique_ptr<Queue> create(Context& context, std::shared_ptr<OpenDescriptor> descriptor,
                                       unsigned adapter, Status& status);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Start a transfer on an idle queue: from any memory of the process, or from a segment.
  [[nodiscard]] Status start(const void* source, RemoteSegment to, std::size_t offset,
                             std::size_t bytes);
  [[nodiscard]] Status start(LocalSegment from, std::size_t from_offset, RemoteSegment to,
                             std::size_t offset, std::size_t bytes);

  /// Starts a transfer in the other direction, into a segment of this end.
  [[nodiscard]] Status start_read(LocalSegment to, std::size_t to_offset, RemoteSegment from,
                                  std::size_t offset, std::size_t bytes);

  enum class Progress { kRunning, kDone, kFailed };
  /// After kFailed, why() has the reason, and the queue may not be used again.
  [[nodiscard]] Progress progress();
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  Queue(Context& context, std::shared_ptr<OpenDescriptor> descriptor);
  Status started(Status status);

  Context& context_;
  std::shared_ptr<OpenDescriptor> descriptor_;
  DmaQueue handle_ = nullptr;
  Pacer lateness_;
  std::string why_;
};

}  // namespace ropewalk::transport::window::sisci

#include "transport/window/sisci/queue.h"

#include <utility>

namespace ropewalk::transport::window::sisci {
namespace {

// A transfer of a piece takes milliseconds on the slowest of links; what takes longer never ends.
constexpr auto kLongestLateness = std::chrono::seconds(20);

}  // namespace

std::unique_ptr<Queue> Queue::create(Context& context, std::shared_ptr<OpenDescriptor> descriptor,
                                     unsigned adapter, Status& status) {
  std::unique_ptr<Queue> made(new Queue(context, std::move(descriptor)));
  status = Status::kUnset;
  (*context.library)
      ->CreateDMAQueue(made->descriptor_->get(), &made->handle_, adapter, 1, 0, &status);
  if (status == Status::kOk) return made;
  made->handle_ = nullptr;
  return nullptr;
}

Queue::Queue(Context& context, std::shared_ptr<OpenDescriptor> descriptor)
    : context_(context), descriptor_(std::move(descriptor)), lateness_(kLongestLateness) {}

Queue::~Queue() {
  if (handle_ == nullptr) return;
  const Library& library = *context_.library;
  Status status = Status::kUnset;
  if (library->DMAQueueState(handle_) == QueueState::kPosted) {
    library->AbortDMAQueue(handle_, 0, &status);
  }
  context_.clean_up.add({[handle = handle_, used = context_.library, descriptor = descriptor_] {
    Status result = Status::kUnset;
    if ((*used)->DMAQueueState(handle) == QueueState::kPosted) return false;
    (*used)->RemoveDMAQueue(handle, 0, &result);
    return result != Status::kBusy;
  }});
}

Status Queue::started(Status status) {
  lateness_.restart();
  return status;
}

Status Queue::start(const void* source, RemoteSegment to, std::size_t offset, std::size_t bytes) {
  Status status = Status::kUnset;
  (*context_.library)
      ->StartDmaTransferMem(handle_, const_cast<void*>(source), to, bytes, offset, nullptr, nullptr,
                            0, &status);
  return started(status);
}

Status Queue::start(LocalSegment from, std::size_t from_offset, RemoteSegment to,
                    std::size_t offset, std::size_t bytes) {
  Status status = Status::kUnset;
  (*context_.library)
      ->StartDmaTransfer(handle_, from, to, from_offset, bytes, offset, nullptr, nullptr, 0,
                         &status);
  return started(status);
}

Status Queue::start_read(LocalSegment to, std::size_t to_offset, RemoteSegment from,
                         std::size_t offset, std::size_t bytes) {
  Status status = Status::kUnset;
  (*context_.library)
      ->StartDmaTransfer(handle_, to, from, to_offset, bytes, offset, nullptr, nullptr,
                         context_.library->flags().dma_read, &status);
  return started(status);
}

Queue::Progress Queue::progress() {
  const QueueState state = (*context_.library)->DMAQueueState(handle_);
  switch (state) {
    case QueueState::kIdle:
    case QueueState::kDone: return Progress::kDone;
    case QueueState::kGather:
    case QueueState::kPosted: break;
    case QueueState::kAborted: why_ = "the transfer was aborted"; return Progress::kFailed;
    case QueueState::kError: why_ = "the transfer ended in an error"; return Progress::kFailed;
  }
  if (lateness_.due()) {
    why_ = "the transfer does not end";
    return Progress::kFailed;
  }
  return Progress::kRunning;
}

}  // namespace ropewalk::transport::window::sisci

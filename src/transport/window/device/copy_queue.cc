#include "transport/window/device/copy_queue.h"

#include "core/error.h"

namespace ropewalk::transport::window {
namespace {

// A copy that fails never writes its mark: now and then the stream itself is asked.
constexpr std::chrono::milliseconds kQueryPeriod{5};

constexpr const char* kWhyLate =
    "a GPU starts no copies while the program frees or registers memory, or loads a kernel, until "
    "the kernels before have ended, and they may wait for the copy";

}  // namespace

CopyQueue::CopyQueue(Gpu& gpu, std::size_t number, std::chrono::nanoseconds limit)
    : gpu_(gpu), stream_(gpu.stream(number)), limit_(limit), looks_(kQueryPeriod) {
  if (gpu.writes_marks()) {
    mark_ = gpu.take_mark();
    // A word that served before has its old value.
    base_ = mark_.host->load(std::memory_order_relaxed);
    return;
  }
  const CurrentContext current(gpu.cuda(), gpu.context());
  gpu.cuda().check(gpu.cuda().event_create(&event_, kCuEventNoTiming), "cuEventCreate");
}

CopyQueue::~CopyQueue() {
  if (event_ != nullptr) {
    gpu_.cuda().warn(gpu_.cuda().event_destroy(event_), "cuEventDestroy");
  }
  // A mark that a stream has yet to write belongs to nobody else.
  if (mark_.host != nullptr && marked()) gpu_.give_mark(mark_);
}

void CopyQueue::to_device(CuPointer destination, const void* source, std::size_t bytes) {
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  mark(gpu_.cuda().copy_to_device(destination, source, bytes, stream_), "copying to a GPU");
}

void CopyQueue::to_host(void* destination, CuPointer source, std::size_t bytes) {
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  mark(gpu_.cuda().copy_to_host(destination, source, bytes, stream_), "copying from a GPU");
}

void CopyQueue::on_device(CuPointer destination, CuPointer source, CuContext source_context,
                          std::size_t bytes) {
  const CurrentContext current(gpu_.cuda(), gpu_.context());
  const CuResult started = source_context == nullptr
                               ? gpu_.cuda().copy_on_device(destination, source, bytes, stream_)
                               : gpu_.cuda().copy_peer(destination, gpu_.context(), source,
                                                       source_context, bytes, stream_);
  mark(started, "copying between GPUs");
}

void CopyQueue::mark(CuResult started, const char* what) {
  gpu_.cuda().check(started, what);
  ++started_;
  looks_.restart();
  start_ = looks_.last();
  gpu_.cuda().check(event_ != nullptr
                        ? gpu_.cuda().event_record(event_, stream_)
                        : gpu_.cuda().stream_write64(stream_, mark_.device, base_ + started_, 0),
                    "marking a copy's end");
}

bool CopyQueue::marked() const {
  return mark_.host->load(std::memory_order_acquire) == base_ + started_;
}

void CopyQueue::throw_if_late() const {
  if (limit_.count() == 0 || looks_.last() - start_ < limit_) return;
  throw Error(Errc::kTimeout, "a copy on {} has not ended for {} s (setting TIMEOUT): {}",
              gpu_.name(), std::chrono::duration<double>(limit_).count(), kWhyLate);
}

bool CopyQueue::done() {
  const CudaApi& cuda = gpu_.cuda();
  if (event_ == nullptr && marked()) return true;
  const bool looks = looks_.due();
  if (event_ == nullptr && !looks) return false;
  const CuResult result = event_ != nullptr ? cuda.event_query(event_) : cuda.stream_query(stream_);
  if (result == kCuNotReady) {
    if (looks) throw_if_late();
    return false;
  }
  cuda.check(result, "a copy on a GPU");
  if (event_ == nullptr && !marked()) {
    throw Error(Errc::kCuda, "a copy on {} ended, but its mark was not written", gpu_.name());
  }
  return true;
}

CopyQueues::CopyQueues(std::size_t count, std::size_t first_stream, std::chrono::nanoseconds limit)
    : first_stream_(first_stream), limit_(limit), made_(count) {}

CopyQueue& CopyQueues::on(int queue, Gpu& gpu) {
  const auto number = static_cast<std::size_t>(queue);
  const Lock lock(mutex_);
  std::vector<std::unique_ptr<CopyQueue>>& made = made_.at(number);
  for (const std::unique_ptr<CopyQueue>& one : made) {
    if (&one->gpu() == &gpu) return *one;
  }
  made.push_back(std::make_unique<CopyQueue>(gpu, first_stream_ + number, limit_));
  return *made.back();
}

void CopyQueues::prepare(Gpu& gpu) {
  for (int queue = 0; queue < count(); ++queue) (void)on(queue, gpu);
}

}  // namespace ropewalk::transport::window

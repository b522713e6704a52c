#include "message/gpu_inbox.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/error.h"

namespace ropewalk::message {
namespace {

namespace gpus = transport::window;
using Clock = std::chrono::steady_clock;

// Of the GPU's own streams, one that carries nothing else of windows.
constexpr std::size_t kInboxStream = 2;
constexpr std::chrono::seconds kInboxPatience{10};
// So that copies of the next put begin at an address that suits copy engines.
constexpr std::size_t kPutAlign = 64;

template <typename Ready>
void await_gpu(const gpus::Gpu& gpu, Ready&& ready) {
  const Clock::time_point limit = Clock::now() + kInboxPatience;
  while (!ready()) {
    if (Clock::now() > limit) {
      throw Error(Errc::kTimeout, "{} has not written for 10 s what links brought for its windows",
                  gpu.name());
    }
    std::this_thread::yield();
  }
}

}  // namespace

GpuInbox::GpuInbox(gpus::Gpu& gpu) : gpu_(gpu) {
  if (!gpu.writes_marks()) return;  // put() waits
  stream_ = gpu.stream(kInboxStream);
  const gpus::CudaApi& cuda = gpu.cuda();
  const gpus::CurrentContext current(cuda, gpu.context());
  void* made = nullptr;
  cuda.check(cuda.host_allocate(&made, kPieces * kMostBytes, gpus::kCuHostPortable),
             "cuMemHostAlloc");
  pieces_ = static_cast<std::byte*>(made);
  for (Piece& piece : in_use_) {
    piece.mark = gpu.take_mark();
    piece.last = piece.mark.host->load(std::memory_order_relaxed);
  }
}

GpuInbox::~GpuInbox() {
  if (pieces_ == nullptr) return;
  try {
    settle();
    for (const Piece& piece : in_use_) gpu_.give_mark(piece.mark);
    const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
    gpu_.cuda().warn(gpu_.cuda().host_free(pieces_), "cuMemFreeHost");
  } catch (const Error&) {
    // CUDA has ended before this did, or its GPU has failed: it may still read the memory.
  }
}

std::byte* GpuInbox::take(std::size_t bytes) {
  if (used_ + bytes > kMostBytes) {
    Piece& full = in_use_[piece_];
    gpu_.cuda().check(gpu_.cuda().stream_write64(stream_, full.mark.device, ++full.last, 0),
                      "cuStreamWriteValue64");
    piece_ = (piece_ + 1) % kPieces;
    used_ = 0;
    await_gpu(gpu_, [&next = in_use_[piece_]] {
      return next.mark.host->load(std::memory_order_acquire) == next.last;
    });
  }
  std::byte* const taken = pieces_ + piece_ * kMostBytes + used_;
  used_ += (bytes + kPutAlign - 1) / kPutAlign * kPutAlign;
  return taken;
}

void GpuInbox::put(std::uint64_t to, const std::byte* from, std::size_t bytes) {
  RW_ASSERT(bytes > 0 && bytes <= kMostBytes);
  if (stream_ == nullptr) {
    gpu_.fill(to, from, bytes);
    return;
  }
  const gpus::CudaApi& cuda = gpu_.cuda();
  const gpus::CurrentContext current(cuda, gpu_.context());
  pending_ = true;
  std::uint64_t word = 0;
  if (bytes == sizeof word && to % sizeof word == 0) {
    // By the stream itself, which takes less time than a copy.
    std::memcpy(&word, from, sizeof word);
    cuda.check(cuda.stream_write64(stream_, to, word, 0), "cuStreamWriteValue64 (a put)");
    return;
  }
  std::byte* const pinned = take(bytes);
  std::memcpy(pinned, from, bytes);
  cuda.check(cuda.copy_to_device(to, pinned, bytes, stream_), "cuMemcpyHtoDAsync (a put)");
}

void GpuInbox::raise(std::uint64_t counter, std::uint64_t value) {
  const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
  gpu_.cuda().check(gpu_.cuda().stream_write64(stream_, counter, value, 0),
                    "cuStreamWriteValue64 (a signal)");
}

bool GpuInbox::idle() {
  if (!pending_) return true;
  const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
  const gpus::CuResult result = gpu_.cuda().stream_query(stream_);
  if (result == gpus::kCuNotReady) return false;
  gpu_.cuda().check(result, "cuStreamQuery (writes of what links brought for windows)");
  pending_ = false;
  return true;
}

void GpuInbox::settle() {
  if (!pending_) return;
  const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
  gpu_.wait(stream_, "cuStreamQuery (writes of what links brought for windows)");
  pending_ = false;
}

}  // namespace ropewalk::message

#include "comm/cuda/copy_engines.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/log.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/handshake_kernel.h"
#include "executor/cuda/stream_order.h"

namespace ropewalk::comm {
namespace {

using executor::Protocol;

// Beside the caller's stream. GPUs have fewer engines that reach peers than a host can have GPUs;
// further copies wait their turn.
constexpr std::size_t kMostLanes = 7;
// Of all copies of a call: shorter ones are over before other streams have begun.
constexpr std::size_t kLeastForkedBytes = std::size_t{1} << 20;

void enqueue_copy(const RankCopy& copy, cudaStream_t stream) {
  executor::check_cuda(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, stream),
                       "cudaMemcpyAsync (into a peer's output)");
}

}  // namespace

CopyEngines::CopyEngines(link::DeviceLinks& links, link::DeviceBlocks& blocks, int rank, int size,
                         CopyEngineUse use, bool check_tags,
                         std::unique_ptr<SharedHandshake> by_stream)
    : links_(links), rank_(rank), use_(use), by_stream_(std::move(by_stream)) {
  const auto peers = static_cast<std::size_t>(size - 1);
  for (std::size_t i = 0; i < std::min(peers, kMostLanes); ++i) {
    lanes_.push_back(std::make_unique<Lane>());
  }
  if (by_stream_ == nullptr) prepare_kernel(blocks, size, check_tags);
}

void CopyEngines::prepare_kernel(link::DeviceBlocks& blocks, int size, bool check_tags) {
  std::vector<executor::SendEnd> sends;
  std::vector<executor::ReceiveEnd> receives;
  for (int r = 0; r < size; ++r) {
    if (r == rank_) continue;
    sends.push_back(links_.send_end(Protocol::kLl, 0, r));
    receives.push_back(links_.receive_end(Protocol::kLl, 0, r));
  }
  sends_ = blocks.copy(sends);
  receives_ = blocks.copy(receives);
  entered_ = blocks.copy(std::vector<std::uint32_t>(4));
  args_.sends = reinterpret_cast<const executor::SendEnd*>(sends_->data());
  args_.receives = reinterpret_cast<const executor::ReceiveEnd*>(receives_->data());
  args_.entered = reinterpret_cast<std::uint32_t*>(entered_->data());
  args_.num_peers = static_cast<std::uint32_t>(sends.size());
  args_.slot_stride = static_cast<std::uint32_t>(
      executor::flagged_bytes(Protocol::kLl, links_.slot_bytes(Protocol::kLl)));
  args_.check_tags = check_tags;
  int least = 0;
  executor::check_cuda(cudaDeviceGetStreamPriorityRange(&least, &priority_),
                       "cudaDeviceGetStreamPriorityRange");
  // As matrix products have it, beside which the kernel waits: a multiprocessor that has divided
  // its memory otherwise may take no block of it.
  executor::check_cuda(cudaFuncSetAttribute(executor::cuda_handshake_kernel(),
                                            cudaFuncAttributePreferredSharedMemoryCarveout,
                                            cudaSharedmemCarveoutMaxShared),
                       "cudaFuncSetAttribute");
  // Loads the kernel now: later that may wait for a kernel that waits for this rank.
  cudaFuncAttributes attributes{};
  executor::check_cuda(cudaFuncGetAttributes(&attributes, executor::cuda_handshake_kernel()),
                       "cudaFuncGetAttributes (the kernel of handshakes)");
}

std::optional<std::size_t> CopyEngines::from_bytes(Collective collective) const noexcept {
  if (!made_of_copies(collective)) return {};
  return use_ == CopyEngineUse::kOn ? 1 : kLeastCopiedBytes;
}

std::optional<CopiedCall> CopyEngines::copied(const CollectiveCall& call, const Extent& extent,
                                              const link::RegisteredBuffers& buffers) {
  const std::optional<std::size_t> least = from_bytes(call.collective);
  if (!least.has_value() || bytes_for_peer(call) < *least) return {};
  const auto location = buffers.symmetric_location({call.output, extent.output_bytes});
  if (!location.has_value()) {
    if (use_ == CopyEngineUse::kOn && !std::exchange(told_, true)) {
      log::info(
          log::kColl,
          "rank {}: {} of {} bytes is left to kernels in spite of COPY_ENGINES=on: its output is "
          "in no window that all ranks registered as symmetric and reach (told once)",
          rank_, name(call.collective), extent.output_bytes);
    }
    return {};
  }
  std::vector<std::byte*> outputs;
  for (const link::BufferRange& window : *location->reached) {
    outputs.push_back(static_cast<std::byte*>(const_cast<void*>(window.begin)) + location->offset);
  }
  // This rank's own address of it.
  outputs[static_cast<std::size_t>(rank_)] = static_cast<std::byte*>(call.output);
  CopiedCall copied;
  copied.copies = copies_of(call, rank_, outputs);
  for (const RankCopy& copy : copied.copies) {
    if (copy.peer != rank_) copied.sent.push_back({copy.peer, copy.bytes});
  }
  std::ranges::sort(copied.sent, {}, &trace::SentBytes::peer);
  copied.location = executor::OutputLocation{location->number, location->offset}.packed();
  return copied;
}

void CopyEngines::shake_hands(executor::HandshakeArgs& args, bool enters,
                              cudaStream_t stream) const {
  args.enters = enters;
  // Ahead of waiting blocks of a computation: it ends after some microseconds.
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributePriority;
  attribute.val.priority = priority_;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(executor::kHandshakeThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* parameters[] = {&args};
  executor::check_cuda(cudaLaunchKernelExC(&config, executor::cuda_handshake_kernel(), parameters),
                       "cudaLaunchKernelExC (a handshake)");
}

// How many of the lanes take copies, beside the caller's stream or, if `instead`, instead of it.
std::size_t CopyEngines::lanes_for(const std::vector<RankCopy>& copies, bool instead,
                                   cudaStream_t stream) const {
  std::size_t bytes = 0;
  for (const RankCopy& one : copies) bytes += one.bytes;
  if (copies.empty() || (bytes < kLeastForkedBytes && !instead)) return 0;
  // A capture on another stream has the lanes until it ends.
  const unsigned long long captures = executor::capture_on(lanes_.front()->stream.get()).number;
  if (captures != 0 && captures != executor::capture_on(stream).number) return 0;
  return std::min(copies.size() - (instead ? 0 : 1), lanes_.size());
}

void CopyEngines::copy(const std::vector<RankCopy>& copies, cudaStream_t stream) {
  // A copy between two GPUs of one process on the default stream waits for all that was enqueued on
  // either, also for handshakes that wait for this very copy (CUDA C++ Programming Guide,
  // "Peer-to-Peer Memory Copy").
  const bool instead = stream == nullptr || stream == cudaStreamLegacy;
  const std::size_t lanes = lanes_for(copies, instead, stream);
  const std::size_t own = lanes > 0 && instead ? 0 : 1;
  if (lanes > 0) {
    executor::check_cuda(cudaEventRecord(ready_.get(), stream), "cudaEventRecord");
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    executor::check_cuda(cudaStreamWaitEvent(lanes_[i]->stream.get(), ready_.get(), 0),
                         "cudaStreamWaitEvent");
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const std::size_t at = i % (lanes + own);
    enqueue_copy(copies[i], at < own ? stream : lanes_[at - own]->stream.get());
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    executor::check_cuda(cudaEventRecord(lanes_[i]->done.get(), lanes_[i]->stream.get()),
                         "cudaEventRecord");
    executor::check_cuda(cudaStreamWaitEvent(stream, lanes_[i]->done.get(), 0),
                         "cudaStreamWaitEvent");
  }
}

void CopyEngines::run(const CopiedCall& call, const executor::CallTag& tag,
                      std::uint64_t timeout_ns, const executor::LaunchStamps& stamps, bool captured,
                      cudaStream_t stream) {
  executor::CallTag own = tag;
  own.collective |= executor::kByCopyEngines;
  if (by_stream_ != nullptr) {
    handshake::StreamHandshake& handshake = *by_stream_->handshake;
    const auto on = reinterpret_cast<transport::window::CuStream>(stream);
    const handshake::HandshakeCall compared{own, call.location};
    handshake.set_timeout(std::chrono::nanoseconds(timeout_ns));
    handshake.enter(compared, captured, on);
    copy(call.copies, stream);
    handshake.leave(compared, on);
    return;
  }
  executor::HandshakeArgs args = args_;
  args.links = links_.others(timeout_ns);
  args.links.stamps = stamps;
  args.tag = own;
  args.location = call.location;
  shake_hands(args, true, stream);
  copy(call.copies, stream);
  shake_hands(args, false, stream);
}

}  // namespace ropewalk::comm

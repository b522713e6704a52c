#include "comm/cuda/shared_handshake.h"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::comm {
namespace {

namespace gpus = transport::window;

// Why a rank leaves its handshakes to kernels.
enum class ByKernels : std::uint8_t { kNot, kAsked, kTimed, kSharedGpu, kNoOperations };

std::string_view words_of(ByKernels reason) {
  switch (reason) {
    case ByKernels::kNot: break;
    case ByKernels::kAsked: return "setting COPY_HANDSHAKES";
    case ByKernels::kTimed: return "records have times of the GPU's clock (setting TRACE_GPU)";
    // The waits of one rank could stand in a queue of the GPU before what ends them.
    case ByKernels::kSharedGpu: return "ranks share a GPU";
    case ByKernels::kNoOperations:
      return "its driver has no 64-bit memory operations of streams (CUDA 11.7)";
  }
  return "";
}

// Has a stream do each of them once. The first ones also have the driver take what they need, which
// later could wait for a kernel that waits for this rank.
void try_operations(gpus::Gpu& gpu) {
  const gpus::MarkWord word = gpu.take_mark();
  std::array<gpus::CuStreamOperation, 3> operations;
  for (gpus::CuStreamOperation& one : operations) {
    one.operation = gpus::kCuStreamWrite64;
    one.address = word.device;
    one.value = 8;
  }
  operations[1].operation = gpus::kCuStreamWait64;
  operations[1].flags = gpus::kCuStreamWaitEqual;
  operations[2].value = 0;
  gpu.now("trying memory operations of a stream", [&](gpus::CuStream stream) {
    return gpu.cuda().stream_batch(stream, operations.size(), operations.data(), 0);
  });
  gpu.give_mark(word);
}

ByKernels reason_here(const Config& config, Runtime& runtime, const link::DevicePeers& peers,
                      int device, bool timed) {
  if (config.text(Setting::kCopyHandshakes) == "kernel") return ByKernels::kAsked;
  if (timed) return ByKernels::kTimed;
  if (peers.most_on_one_gpu() > 1) return ByKernels::kSharedGpu;
  try {
    gpus::Gpu& gpu = runtime.gpus().at(device);
    if (gpu.writes_marks() && gpu.cuda().stream_batch != nullptr && gpu.cuda().copy != nullptr) {
      try_operations(gpu);
      return ByKernels::kNot;
    }
  } catch (const Error& error) {
    log::info(log::kInit, "{}", error.what());
  }
  return ByKernels::kNoOperations;
}

}  // namespace

std::unique_ptr<SharedHandshake> make_shared_handshake(bootstrap::Bootstrap& bootstrap,
                                                       const Config& config, Runtime& runtime,
                                                       link::DevicePeers& peers,
                                                       executor::Control& control, int device,
                                                       bool timed) {
  const int rank = bootstrap.rank();
  const Deadline deadline = deadline_of(config);
  std::vector<ByKernels> reasons(static_cast<std::size_t>(bootstrap.size()));
  reasons[static_cast<std::size_t>(rank)] = reason_here(config, runtime, peers, device, timed);
  bootstrap.all_gather(std::as_writable_bytes(std::span(reasons)), sizeof(ByKernels), deadline);
  for (std::size_t r = 0; r < reasons.size(); ++r) {
    if (reasons[r] == ByKernels::kNot) continue;
    log::info(log::kInit, "rank {}: handshakes around copies are kernels; rank {}: {}", rank, r,
              words_of(reasons[r]));
    return nullptr;
  }
  auto made = std::make_unique<SharedHandshake>();
  made->memory =
      peers.share_with_all(bootstrap, handshake::HandshakeWords::bytes(bootstrap.size()), deadline);
  const handshake::HandshakeWords words(made->memory->on_host(),
                                        reinterpret_cast<std::uint64_t>(made->memory->on_device()),
                                        bootstrap.size());
  made->handshake = std::make_unique<handshake::StreamHandshake>(
      runtime.gpus().at(device).cuda(), words, control, rank, config.flag(Setting::kCheckCalls));
  if (bootstrap.size() <= handshake::CopiedMessages::kMostRanks) {
    made->message_memory =
        peers.share_with_all(bootstrap, handshake::MessageWords::bytes(bootstrap.size()), deadline);
    const handshake::MessageWords message_words(
        made->message_memory->on_host(),
        reinterpret_cast<std::uint64_t>(made->message_memory->on_device()), bootstrap.size());
    made->messages = std::make_unique<handshake::CopiedMessages>(runtime.gpus().at(device).cuda(),
                                                                 message_words, control, rank);
  }
  log::info(log::kInit, "rank {}: handshakes around copies are memory operations of the stream",
            rank);
  return made;
}

}  // namespace ropewalk::comm

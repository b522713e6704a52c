#include "link/gpu_slots.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "link/gpu_flush.h"
#include "transport/messaging/verification.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::link {
namespace {

namespace window = transport::window;
using transport::MemoryKind;
using transport::ReceiveBuffer;

constexpr std::size_t kTrialBytes = std::size_t{64} << 10;
constexpr std::uint32_t kTrialTag = 1;
constexpr std::chrono::seconds kTrialTime{5};

/// What a rank tells the others.
enum class Told : std::uint8_t { kRefuses, kPinned, kOnGpu };

/// No fault: the transport or a setting leaves host memory alone.
class HostMemoryOnly : public Error {
 public:
  using Error::Error;
};

template <typename Done>
void wait_until(std::string_view what, Done done) {
  const auto end = std::chrono::steady_clock::now() + kTrialTime;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) {
      throw Error(Errc::kTimeout, "{} took more than {} s", what, kTrialTime.count());
    }
    std::this_thread::yield();
  }
}

/// A device's connection to itself.
struct Loop {
  Loop(transport::Transport& transport, int device) : listener(transport.listen(device)) {
    const auto connector = transport.connect(device, listener->handle());
    wait_until("connecting", [&] {
      if (sender == nullptr) sender = connector->poll();
      if (receiver == nullptr) receiver = listener->accept();
      if (sender == nullptr || receiver == nullptr) return false;
      const bool sends = sender->ready();
      return receiver->ready() && sends;
    });
  }
  std::unique_ptr<transport::Listener> listener;
  std::unique_ptr<transport::SendConnection> sender;
  std::unique_ptr<transport::ReceiveConnection> receiver;
};

/// Memory at one end of a trial.
struct TrialEnd {
  std::byte* data = nullptr;
  transport::Registration* registration = nullptr;
  bool on_gpu = false;
};

void move(Loop& loop, const TrialEnd& from, const TrialEnd& to, bool flushes) {
  const ReceiveBuffer buffer{to.data, kTrialBytes, kTrialTag, to.registration};
  std::unique_ptr<transport::Request> receive;
  std::unique_ptr<transport::Request> send;
  bool received = false;
  bool sent = false;
  wait_until("a message", [&] {
    if (receive == nullptr) receive = loop.receiver->receive({&buffer, 1});
    if (send == nullptr) {
      send = loop.sender->send(from.data, kTrialBytes, kTrialTag, from.registration);
    }
    // Either end may have to go on before the other one can.
    received = received || (receive != nullptr && receive->test().has_value());
    sent = sent || (send != nullptr && send->test().has_value());
    return sent && received;
  });
  if (!to.on_gpu || !flushes) return;
  std::unique_ptr<transport::Request> flush;
  wait_until("a flush", [&] {
    if (flush == nullptr) flush = loop.receiver->flush({&buffer, 1});
    return flush != nullptr && flush->test().has_value();
  });
}

}  // namespace

struct GpuSlots::Block {
  Block(window::Gpu& gpu, std::size_t size)
      : memory(gpu, size, window::DeviceBuffer::From::kAllocator), bytes(size) {}
  window::DeviceBuffer memory;
  std::size_t bytes;
  std::size_t used = 0;
  std::optional<window::ExportedMemory> exported;
};

GpuSlots::Options GpuSlots::options_of(const Config& config) {
  Options options;
  const std::string& use = config.text(Setting::kNetGpuSlots);
  options.use = use == "on" ? Use::kOn : use == "auto" ? Use::kAuto : Use::kOff;
  // Who encrypts has to read the data.
  if (config.flag(Setting::kNetEncrypt)) options.use = Use::kOff;
  options.always_flushes = config.text(Setting::kNetGpuFlush) == "always";
  return options;
}

GpuSlots::GpuSlots(Options options) : options_(std::move(options)) {}
GpuSlots::~GpuSlots() = default;

std::unique_ptr<GpuSlots> GpuSlots::agree(bootstrap::Bootstrap& bootstrap,
                                          transport::Transport& transport, std::vector<int> devices,
                                          Options options, Deadline deadline) {
  std::unique_ptr<GpuSlots> made;
  std::vector<Told> all(static_cast<std::size_t>(bootstrap.size()));
  Told& own = all[static_cast<std::size_t>(bootstrap.rank())];
  if (options.use != Use::kOff) {
    made.reset(new GpuSlots(std::move(options)));
    own = Told::kPinned;
    constexpr const char* kWords =
        "slots of links to other hosts are in pinned memory, not in the GPU's: {}";
    try {
      made->open(transport, std::move(devices));
      own = Told::kOnGpu;
    } catch (const HostMemoryOnly& why) {
      log::info(log::kNet, kWords, why.what());
    } catch (const Error& why) {
      log::warn(kWords, why.what());
    }
    if (own != Told::kOnGpu) {
      made->gpu_ = nullptr;
      made->blocks_.clear();
    }
  }
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof own, deadline);
  const auto refuses = std::ranges::find(all, Told::kRefuses);
  if (refuses != all.end() || std::ranges::find(all, Told::kOnGpu) == all.end()) {
    if (own == Told::kOnGpu) {
      log::info(log::kNet,
                "slots of links to other hosts are in pinned memory: rank {} does not want them in "
                "GPU memory (settings NET_GPU_SLOTS, NET_ENCRYPT)",
                refuses - all.begin());
    }
    return nullptr;
  }
  if (made->on_gpu()) {
    log::info(log::kNet,
              "slots of links to other hosts are in memory of {}, registered by {}, and what "
              "arrives there is {}flushed",
              made->gpu_->name(), made->exports_ ? "dma-buf" : "address",
              made->flushes_ ? "" : "not ");
  }
  return made;
}

void GpuSlots::open(transport::Transport& transport, std::vector<int> devices) {
  std::erase_if(devices, [&](int device) { return device >= transport.num_devices(); });
  if (devices.empty()) {
    throw HostMemoryOnly(Errc::kInvalidUsage, "{} has no device", transport.name());
  }
  bool by_dma_buf = true;
  for (const int device : devices) {
    const transport::DeviceProperties properties = transport.properties(device);
    if ((properties.memory_kinds & static_cast<unsigned>(MemoryKind::kCuda)) == 0) {
      throw HostMemoryOnly(Errc::kInvalidUsage, "{} takes host memory only", properties.name);
    }
    if (properties.gpu_memory_mapped_later) {
      throw HostMemoryOnly(Errc::kInvalidUsage,
                           "{} maps GPU memory by CUDA after connecting, which waits for the "
                           "kernels that wait for the data",
                           properties.name);
    }
    if (properties.gpu_memory_by_cuda && options_.use != Use::kOn) {
      throw HostMemoryOnly(Errc::kInvalidUsage,
                           "{} may need CUDA to move it, which may wait for the kernels that wait "
                           "for the data",
                           properties.name);
    }
    by_dma_buf =
        by_dma_buf && (properties.memory_kinds & static_cast<unsigned>(MemoryKind::kDmaBuf)) != 0;
  }
  gpu_ = &options_.gpu();
  flushes_ = options_.always_flushes || needs_flush(ordering_of(*gpu_));
  exports_ = by_dma_buf;
  add_block();
  for (const int device : devices) {
    try {
      try_device(transport, device);
    } catch (const Error& error) {
      throw Error(error.code(), "{}: {}", transport.properties(device).name, error.what());
    }
  }
}

void GpuSlots::add_block() {
  auto made = std::make_unique<Block>(
      *gpu_, std::max({options_.block_bytes, options_.end_bytes, 2 * kTrialBytes}));
  if (exports_) {
    try {
      made->exported.emplace(window::GpuMemory{gpu_, made->memory.data(), made->bytes, false, {}});
    } catch (const Error& error) {
      log::info(log::kNet, "{}; its memory is registered by address", error.what());
      exports_ = false;
    }
  }
  blocks_.push_back(std::move(made));
}

SlotPiece GpuSlots::piece(const Block& block, std::size_t offset) {
  SlotPiece made;
  made.data = static_cast<std::byte*>(block.memory.pointer()) + offset;
  if (block.exported.has_value()) {
    made.exported = block.exported->buffer();
    made.exported.offset += offset;
  }
  return made;
}

// Between GPU memory and GPU memory, and between it and the host's, where another rank's slots may
// be.
void GpuSlots::try_device(transport::Transport& transport, int device) {
  std::vector<std::byte> host(2 * kTrialBytes);
  const SlotPiece own = piece(*blocks_.front(), 0);
  const std::size_t bytes = std::max(2 * kTrialBytes, options_.end_bytes);
  Loop loop(transport, device);
  const auto source = register_piece(*loop.sender, own, bytes);
  const auto target = register_piece(*loop.receiver, own, bytes);
  const auto host_source =
      loop.sender->register_memory(host.data(), host.size(), MemoryKind::kHost);
  const auto host_target =
      loop.receiver->register_memory(host.data(), host.size(), MemoryKind::kHost);
  const TrialEnd from[] = {{own.data, source.get(), true}, {host.data(), host_source.get(), false}};
  const TrialEnd to[] = {{own.data + kTrialBytes, target.get(), true},
                         {host.data() + kTrialBytes, host_target.get(), false}};
  const auto fill = [&](const TrialEnd& end, std::span<const std::byte> bytes_of) {
    if (end.on_gpu) {
      gpu_->fill(reinterpret_cast<window::CuPointer>(end.data), bytes_of.data(), bytes_of.size());
    } else {
      std::ranges::copy(bytes_of, end.data);
    }
  };
  std::uint64_t seed = 1;
  std::vector<std::byte> sent(kTrialBytes);
  for (const TrialEnd& source_end : from) {
    for (const TrialEnd& target_end : to) {
      if (!source_end.on_gpu && !target_end.on_gpu) continue;
      transport::messaging::fill_pattern(sent, seed);
      seed += 2;  // which takes odd ones
      fill(source_end, sent);
      fill(target_end, std::vector<std::byte>(kTrialBytes, std::byte{0xd7}));
      move(loop, source_end, target_end, flushes_);
      std::vector<std::byte> seen(kTrialBytes);
      if (target_end.on_gpu) {
        gpu_->fetch(seen.data(), reinterpret_cast<window::CuPointer>(target_end.data), seen.size());
      } else {
        std::copy_n(target_end.data, seen.size(), seen.data());
      }
      if (seen == sent) continue;
      throw Error(Errc::kPeerLost, "a pattern from {} into {} came wrong",
                  source_end.on_gpu ? "GPU memory" : "host memory",
                  target_end.on_gpu ? "GPU memory" : "host memory");
    }
  }
}

void GpuSlots::reserve() {
  if (!on_gpu()) return;
  const Block& last = *blocks_.back();
  if (last.bytes - last.used < options_.end_bytes) add_block();
}

SlotPiece GpuSlots::take() {
  if (!on_gpu()) return {};
  reserve();
  Block& block = *blocks_.back();
  return piece(block, std::exchange(block.used, block.used + options_.end_bytes));
}

std::size_t GpuSlots::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& block : blocks_) bytes += block->bytes;
  return bytes;
}

}  // namespace ropewalk::link

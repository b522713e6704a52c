#include "diagnose/measure_site.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "core/error.h"
#include "diagnose/repeated_memory.h"

namespace ropewalk::diagnose {
namespace {

constexpr std::size_t kPageBytes = 4096;

// Page-aligned memory.
class Block {
 public:
  explicit Block(std::size_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes}))) {}
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept {
      ::operator delete (data, std::align_val_t{kPageBytes});
    }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

// The blocks of a thread's last measurements, for its next ones: the kernel clears each page of new
// memory, which takes longer than to measure a short message. It may take the pages of kept blocks
// back at any time. Threads: one.
class KeptBlocks {
 public:
  // At least `bytes`, of any contents.
  Block take(std::size_t bytes) {
    const auto fits = [&](const Block& kept) {
      return kept.bytes() >= bytes && kept.bytes() / 2 <= bytes;
    };
    const auto found = std::find_if(blocks_.begin(), blocks_.end(), fits);
    if (found != blocks_.end()) {
      Block taken = std::move(*found);
      blocks_.erase(found);
      return taken;
    }
    blocks_.clear();  // messages have another size now
    return Block(bytes);
  }
  void give(Block block) noexcept {
    std::size_t sum = block.bytes();
    for (const Block& kept : blocks_) sum += kept.bytes();
    if (block.bytes() < kLeast || sum > kMost) return;
    if (madvise(block.data(), block.bytes() / kPageBytes * kPageBytes, MADV_FREE) != 0) return;
    try {
      blocks_.push_back(std::move(block));
    } catch (const std::bad_alloc&) {  // so it is freed
    }
  }

 private:
  static constexpr std::size_t kLeast = std::size_t{1} << 20;
  static constexpr std::size_t kMost = std::size_t{512} << 20;
  std::vector<Block> blocks_;
};

KeptBlocks& kept_blocks() {
  thread_local KeptBlocks kept;
  return kept;
}

class HostSite final : public MeasureSite {
 public:
  explicit HostSite(comm::Communicator& comm) : comm_(comm) {}
  HostSite(const HostSite&) = delete;
  HostSite& operator=(const HostSite&) = delete;
  ~HostSite() override {
    for (Block& block : buffers_) kept_blocks().give(std::move(block));
  }

  std::byte* take(std::size_t bytes, std::size_t offset) override {
    buffers_.push_back(kept_blocks().take(std::max<std::size_t>(offset + bytes, 1)));
    std::memset(buffers_.back().data(), 0x5a, offset + bytes);
    return buffers_.back().data() + offset;
  }
  std::byte* take_repeated(std::size_t bytes, std::size_t period) override {
    repeated_.push_back(std::make_unique<RepeatedMemory>(bytes, period));
    return repeated_.back()->data();
  }
  void register_buffers() override {
    throw Error(Errc::kInvalidUsage, "registered: memory of the host needs no registration");
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void read(std::span<std::byte> to, const std::byte* from) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
  void repeat(std::byte* begin, std::size_t period, std::size_t bytes) override {
    for (std::size_t done = period; done > 0 && done < bytes; done *= 2) {
      std::memcpy(begin + done, begin, std::min(done, bytes - done));
    }
  }
  void run(const comm::CollectiveCall& call) override { comm_.run(call); }
  void add(const comm::CollectiveCall& call, comm::Group& group) override {
    group.add(comm_, call, nullptr);
  }
  bool finished() override { return true; }
  void finish() override {}
  void begin_capture() override {
    throw Error(Errc::kInvalidUsage, "graphs: operations on host memory are not captured");
  }
  void end_capture() override {}
  void load_captured() override {}
  void replay() override {}
  std::string algorithm_of(const comm::CollectiveCall& call) override {
    return comm_.algorithm_of(call);
  }

 private:
  comm::Communicator& comm_;
  std::vector<Block> buffers_;
  std::vector<std::unique_ptr<RepeatedMemory>> repeated_;
};

}  // namespace

std::unique_ptr<MeasureSite> host_site(comm::Communicator& comm) {
  return std::make_unique<HostSite>(comm);
}

}  // namespace ropewalk::diagnose

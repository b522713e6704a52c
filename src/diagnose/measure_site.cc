#include "diagnose/measure_site.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "core/error.h"
#include "diagnose/repeated_memory.h"

namespace ropewalk::diagnose {
namespace {

constexpr std::size_t kPageBytes = 4096;

class HostSite final : public MeasureSite {
 public:
  explicit HostSite(comm::Communicator& comm) : comm_(comm) {}

  std::byte* take(std::size_t bytes, std::size_t offset) override {
    buffers_.emplace_back(static_cast<std::byte*>(
        ::operator new (std::max<std::size_t>(offset + bytes, 1), std::align_val_t{kPageBytes})));
    std::memset(buffers_.back().get(), 0x5a, offset + bytes);
    return buffers_.back().get() + offset;
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
  struct Free {
    void operator()(std::byte* data) const noexcept {
      ::operator delete (data, std::align_val_t{kPageBytes});
    }
  };
  comm::Communicator& comm_;
  std::vector<std::unique_ptr<std::byte, Free>> buffers_;
  std::vector<std::unique_ptr<RepeatedMemory>> repeated_;
};

}  // namespace

std::unique_ptr<MeasureSite> host_site(comm::Communicator& comm) {
  return std::make_unique<HostSite>(comm);
}

}  // namespace ropewalk::diagnose

#include "transport/messaging/ofi/gpu_trial.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>

#include "core/error.h"
#include "transport/messaging/gpus.h"

namespace ropewalk::transport::ofi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kGpuBytes = messaging::TrialMemory::kGpuBytes;
// More than a packet, and no multiple of anything.
constexpr std::size_t kTrialBytes = 65'543;
constexpr auto kTrialPatience = std::chrono::seconds(2);
// Of data whose operation has ended, where the provider promises no more than that.
constexpr auto kArrivalPatience = std::chrono::milliseconds(200);

struct Ended {
  Operation operation;
  bool done = false;
  std::string error;

  Ended() {
    operation.owner = this;
    operation.finished = [](Operation& ended, const std::string& words) {
      auto& own = *static_cast<Ended*>(ended.owner);
      own.done = true;
      own.error = words;
    };
  }
  ~Ended() = default;
  Ended(const Ended&) = delete;
  Ended& operator=(const Ended&) = delete;
};

// With the endpoint's mutex held.
class Trial {
 public:
  Trial(Endpoint& endpoint, window::Gpu& gpu, Means means) RW_NO_THREAD_ANALYSIS
      : endpoint_(endpoint),
        gpu_(gpu),
        memory_(gpu, kTrialBytes) {
    constexpr std::uint64_t kAll =
        FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    window::GpuMemory memory;
    memory.gpu = &gpu;
    memory.data = memory_.gpu_data();
    memory.bytes = kGpuBytes;
    const std::string refused = endpoint.register_by(means, memory, kAll, nullptr, of_gpu_);
    if (!refused.empty()) throw Error(Errc::kSystem, "{}", refused);
    of_host_ = endpoint.register_memory(memory_.host().data(), memory_.host().size(), kAll);
  }

  void run() RW_NO_THREAD_ANALYSIS {
    std::byte* const sent = memory_.sent();
    std::byte* const seen = memory_.seen();
    std::byte* const on_gpu = memory_.on_gpu();
    const bool confirmed = endpoint_.device().large == LargePath::kWriteConfirmed;

    // As messages arrive: written by RMA, then flushed by a read.
    memory_.draw_on_host(kTrialBytes);
    gpu_.fill(memory_.gpu_data(), seen, kTrialBytes);
    move("an RMA write to it", [&](Operation& operation) RW_NO_THREAD_ANALYSIS {
      return write(on_gpu, of_gpu_, sent, of_host_, confirmed, operation);
    });
    arrives("an RMA read of it", [&](Operation& operation) RW_NO_THREAD_ANALYSIS {
      return read(on_gpu, of_gpu_, seen, of_host_, operation);
    });
    on_gpu_is("an RMA write to it", 0);

    // As small ones get into it.
    memory_.draw_on_host(kTrialBytes);
    move("an RMA read into it", [&](Operation& operation) RW_NO_THREAD_ANALYSIS {
      return read(sent, of_host_, on_gpu, of_gpu_, operation);
    });
    on_gpu_is("an RMA read into it", 0);

    // As messages leave.
    memory_.draw_on_gpu(kTrialBytes);
    move("an RMA write from it", [&](Operation& operation) RW_NO_THREAD_ANALYSIS {
      return write(seen, of_host_, on_gpu, of_gpu_, confirmed, operation);
    });
    arrives("an RMA write from it", [&](Operation& operation) RW_NO_THREAD_ANALYSIS {
      return read(seen, of_host_, sent, of_host_, operation);
    });

    if (endpoint_.device().large == LargePath::kTagged) run_tagged();
  }

 private:
  // As long messages go, where they are tagged.
  void run_tagged() RW_NO_THREAD_ANALYSIS {
    constexpr const char* kWhat = "a tagged message";
    std::byte* const on_gpu = memory_.on_gpu();
    const std::uint64_t tag = endpoint_.next_tag();
    memory_.draw_on_gpu(kTrialBytes);
    const auto receives = std::make_unique<Ended>();
    start(
        [&](Operation& operation) RW_NO_THREAD_ANALYSIS {
          return endpoint_.receive_tagged(tag, on_gpu + kGpuBytes / 2, kTrialBytes,
                                          of_gpu_.descriptor, operation);
        },
        *receives);
    try {
      move(kWhat, [&](Operation& operation) RW_NO_THREAD_ANALYSIS {
        const iovec from{on_gpu, kTrialBytes};
        std::array<void*, 1> descriptor{of_gpu_.descriptor};
        return endpoint_.send_tagged(endpoint_.self(), tag, {&from, 1}, descriptor, operation);
      });
    } catch (const Error&) {
      // The provider has the receive still.
      endpoint_.cancel(receives->operation);
      try {
        finish(kWhat, *receives);
      } catch (const Error&) {
        // It has ended, one way or the other.
      }
      throw;
    }
    finish(kWhat, *receives);
    on_gpu_is(kWhat, kGpuBytes / 2);
  }

  // From memory at this end's `local` to `to`, which is written as a peer's.
  bool write(std::byte* to, const Region& region, std::byte* local, const Region& local_region,
             bool confirmed, Operation& operation) RW_NO_THREAD_ANALYSIS {
    const iovec from{local, kTrialBytes};
    std::array<void*, 1> descriptor{local_region.descriptor};
    return endpoint_.write(remote(region, to), {&from, 1}, descriptor, confirmed, 0, operation);
  }
  bool read(std::byte* from, const Region& region, std::byte* local, const Region& local_region,
            Operation& operation) RW_NO_THREAD_ANALYSIS {
    return endpoint_.read(remote(region, from), local, kTrialBytes, local_region.descriptor,
                          operation);
  }
  [[nodiscard]] Endpoint::Remote remote(const Region& region, const std::byte* data) const {
    return {endpoint_.self(), endpoint_.remote_address(region, data), region.key};
  }

  template <typename Start>
  void start(Start call, Ended& ended) RW_NO_THREAD_ANALYSIS {
    const Clock::time_point since = Clock::now();
    while (!call(ended.operation)) {
      if (endpoint_.retired()) throw Error(Errc::kPeerLost, "{}", "the endpoint was closed");
      if (Clock::now() - since > kTrialPatience) {
        throw Error(Errc::kTimeout, "{}", "the provider takes nothing for itself");
      }
      endpoint_.progress();
    }
  }
  void finish(const char* what, Ended& ended) RW_NO_THREAD_ANALYSIS {
    const Clock::time_point since = Clock::now();
    while (!ended.done) {
      const bool late = Clock::now() - since > kTrialPatience;
      // The provider has the memory still.
      if (late) endpoint_.retire(fmt::format("{} for a trial does not end", what));
      if (endpoint_.retired()) throw Error(Errc::kTimeout, "{} does not end", what);
      if (!endpoint_.progress()) std::this_thread::yield();
    }
    if (!ended.error.empty()) throw Error(Errc::kSystem, "{}: {}", what, ended.error);
  }
  template <typename Start>
  void move(const char* what, Start call) RW_NO_THREAD_ANALYSIS {
    const auto ended = std::make_unique<Ended>();
    try {
      start(call, *ended);
    } catch (const Error& error) {
      throw Error(Errc::kSystem, "{}: {}", what, error.what());
    }
    finish(what, *ended);
  }
  // Until the pattern is seen; each `call` gives what was under way some time.
  template <typename Start>
  void arrives(const char* what, Start call) RW_NO_THREAD_ANALYSIS {
    const Clock::time_point since = Clock::now();
    do {
      move(what, call);
      if (memory_.is_seen()) return;
    } while (Clock::now() - since < kArrivalPatience);
    throw Error(Errc::kSystem, "{} reports success, but the pattern did not arrive", what);
  }
  void on_gpu_is(const char* what, std::size_t offset) {
    if (memory_.is_on_gpu(offset)) return;
    throw Error(Errc::kSystem, "{} reports success, but the pattern is not in the GPU's memory",
                what);
  }

  Endpoint& endpoint_;
  window::Gpu& gpu_;
  messaging::TrialMemory memory_;
  // These end before the memory.
  Region of_gpu_;
  Region of_host_;
};

}  // namespace

std::string try_gpu(Endpoint& endpoint, window::Gpu& gpu, Means means) {
  try {
    Trial(endpoint, gpu, means).run();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace ropewalk::transport::ofi

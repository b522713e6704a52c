// What receives into GPU memory need beyond others: small messages get there through the NIC, and
// what has come is flushed.
#include <algorithm>
#include <deque>
#include <utility>

#include "transport/messaging/gpus.h"
#include "transport/messaging/ofi/receiver.h"
#include "transport/simple_requests.h"

namespace ropewalk::transport::ofi {

using messaging::wire_checksum;

/// One read of each GPU's memory. Threads: those of the receiver.
class FlushRequest final : public Request {
 public:
  FlushRequest(Receiver& receiver, std::span<const ReceiveBuffer> buffers)
      : receiver_(receiver), sizes_(buffers.size()) {
    for (const ReceiveBuffer& buffer : buffers) {
      FabricRegistration* const memory = receiver.on_gpu(buffer.registration);
      if (memory == nullptr || buffer.bytes == 0 || known(memory->region.gpu)) continue;
      memory->check_holds(buffer.data, buffer.bytes);
      Read& read = reads_.emplace_back();
      read.memory = memory;
      read.data = buffer.data;
      read.bytes = buffer.bytes;
      read.operation.owner = &read;
      read.operation.finished = [](Operation& operation, const std::string& error) {
        auto& ended = *static_cast<Read*>(operation.owner);
        ended.done = true;
        ended.error = error;
      };
    }
  }
  ~FlushRequest() override {
    const Lock lock(receiver_.fabric_.mutex);
    for (const Read& read : reads_) {
      if (read.operation.under_way) receiver_.fabric_.forget(read.operation);
    }
  }
  FlushRequest(const FlushRequest&) = delete;
  FlushRequest& operator=(const FlushRequest&) = delete;

  std::optional<std::size_t> test() override {
    const Lock lock(receiver_.fabric_.mutex);
    bool all = true;
    for (Read& read : reads_) {
      if (read.done) continue;
      if (!read.operation.under_way) start(read);
      all = false;
    }
    if (!all) receiver_.drive();
    for (const Read& read : reads_) {
      if (!read.error.empty()) {
        receiver_.fail(Errc::kPeerLost, fmt::format("flushing GPU memory: {}", read.error));
      }
    }
    receiver_.Connection::throw_if_failed();
    all = std::all_of(reads_.begin(), reads_.end(), [](const Read& read) { return read.done; });
    return all ? std::optional<std::size_t>(0) : std::nullopt;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

 private:
  struct Read {
    FabricRegistration* memory = nullptr;
    const void* data = nullptr;
    std::size_t bytes = 0;
    Operation operation;
    bool done = false;
    std::string error;
  };
  [[nodiscard]] bool known(const window::Gpu* gpu) const {
    return std::any_of(reads_.begin(), reads_.end(),
                       [&](const Read& read) { return read.memory->region.gpu == gpu; });
  }
  void start(Read& read) RW_NO_THREAD_ANALYSIS {
    if (read.memory->region.mr == nullptr) {
      read.error = "its memory's registration ended when a receive was given up";
      return;
    }
    try {
      (void)receiver_.fabric_.flush_gpu(read.memory->region, read.data, read.bytes, read.operation);
    } catch (const Error& error) {
      read.error = error.what();
    }
  }

  Receiver& receiver_;
  std::deque<Read> reads_;  // which do not move
  std::vector<std::size_t> sizes_;
};

std::unique_ptr<Request> Receiver::flush(std::span<const ReceiveBuffer> buffers) {
  if (fabric_.takes_gpu_memory()) return std::make_unique<FlushRequest>(*this, buffers);
  return std::make_unique<FinishedRequest>(std::vector<std::size_t>(buffers.size(), 0));
}

template <void (Receiver::*kEnded)(Receiver::Posted&, const std::string&)>
void Receiver::settle(Posted& posted, std::span<const std::byte> data) {
  posted.operation.owner = &posted;
  posted.operation.finished = [](Operation& operation, const std::string& error) {
    auto& ended = *static_cast<Posted*>(operation.owner);
    (ended.receiver->*kEnded)(ended, error);
  };
  set_settling(posted, true);
  for_gpu_.push_back({&posted, {data.begin(), data.end()}});
  start_all_for_gpu();
}

void Receiver::put_on_gpu(Posted& posted, std::span<const std::byte> data, std::uint64_t checksum) {
  posted.bytes = data.size();
  // It was summed in host memory: here it is seen whether it is what was sent.
  if (checksum != 0 && wire_checksum(data.data(), data.size()) != checksum) {
    return fail_checksum(data.size());
  }
  posted.checksum = checksum;
  settle<&Receiver::put_ended>(posted, data);
}

void Receiver::check_on_gpu(Posted& posted, std::uint64_t bytes, std::uint64_t checksum) {
  if (failed()) return;  // nothing begins any more for a receive that may have been given up
  posted.bytes = bytes;
  posted.checksum = checksum;
  settle<&Receiver::on_gpu_checked>(posted, {});
}

void Receiver::set_settling(Posted& posted, bool now) {
  if (now && !posted.settling) ++settling_;
  if (!now && posted.settling) --settling_;
  posted.settling = now;
}

void Receiver::put_ended(Posted& posted, const std::string& error) {
  set_settling(posted, false);
  if (!error.empty()) {
    return fail(Errc::kPeerLost,
                fmt::format("a message of {} bytes (tag {}), on its way into GPU memory: {}",
                            posted.bytes, posted.buffer.tag, error));
  }
  if (!failed()) end(posted);
}

void Receiver::on_gpu_checked(Posted& posted, const std::string& error) {
  set_settling(posted, false);
  if (failed()) return;
  try {
    if (!error.empty()) throw Error(Errc::kPeerLost, "flushing GPU memory: {}", error);
    if (messaging::gpu_checksum(*posted.gpu->region.gpu, posted.buffer.data, posted.bytes) !=
        posted.checksum) {
      return fail_checksum(posted.bytes);
    }
    end(posted);
  } catch (const Error& wrong) {
    fail(wrong.code(), wrong.what());
  }
}

void Receiver::start_all_for_gpu() {
  // In the order in which they came; one that fails to start fails the connection.
  try {
    while (!for_gpu_.empty() && start_for_gpu(for_gpu_.front())) for_gpu_.pop_front();
  } catch (const Error& error) {
    fail(error.code(), error.what());
  }
}

bool Receiver::start_for_gpu(const ForGpu& work) {
  Posted& posted = *work.posted;
  const Region& region = posted.gpu->region;
  if (region.mr == nullptr) {
    throw Error(Errc::kAborted, "{}",
                "its memory's registration ended when a receive was given up");
  }
  if (work.data.empty()) {
    return fabric_.flush_gpu(region, posted.buffer.data, posted.bytes, posted.operation);
  }
  return fabric_.copy_to_gpu(region, posted.buffer.data, work.data, posted.operation);
}

}  // namespace ropewalk::transport::ofi

// A transport for tests that takes GPU memory, over one that takes host memory: like a NIC with
// GPUDirect RDMA it moves GPU memory without CUDA, and what it writes there need not be there yet
// when it says so.
//
// GPU memory is that of the stand-in for CUDA, `touchable` (tests/stand_ins/cuda.cc).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "transport/transport.h"

namespace ropewalk::transport::testing {

/// What the NIC is like, and what was asked of it. Threads: any.
struct GpuNicState {
  std::atomic<bool> takes_gpu_memory = true;
  std::atomic<bool> takes_dma_buf = false;
  std::atomic<bool> needs_cuda = false;
  std::atomic<bool> maps_later = false;
  /// What arrives in GPU memory is there only when it was flushed.
  std::atomic<bool> late = false;
  /// Registrations of GPU memory from this one on are refused, of senders or of receivers; 0: none.
  std::atomic<int> refuses_sender_from = 0;
  std::atomic<int> refuses_receiver_from = 0;
  /// Flushes from this one on fail; 0: none.
  std::atomic<int> fails_flush_from = 0;

  std::atomic<int> sender_registrations = 0;  ///< of GPU memory
  std::atomic<int> receiver_registrations = 0;
  std::atomic<int> by_dma_buf = 0;  ///< of these
  std::atomic<int> registered = 0;  ///< now
  std::atomic<int> flushes = 0;
  std::atomic<int> gpu_messages = 0;  ///< that were received into GPU memory
};

namespace detail {

class GpuNicRegistration final : public Registration {
 public:
  explicit GpuNicRegistration(GpuNicState& state) : state_(state) { ++state_.registered; }
  ~GpuNicRegistration() override {
    RW_ASSERT(users == 0);
    --state_.registered;
  }
  GpuNicRegistration(const GpuNicRegistration&) = delete;
  GpuNicRegistration& operator=(const GpuNicRegistration&) = delete;
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kCuda; }

  int users = 0;  ///< requests that are not over

 private:
  GpuNicState& state_;
};

inline bool on_gpu(const Registration* registration) {
  return registration != nullptr && registration->kind() == MemoryKind::kCuda;
}

inline std::unique_ptr<Registration> register_gpu(GpuNicState& state, int number, int refuses_from,
                                                  bool by_dma_buf) {
  if (refuses_from != 0 && number >= refuses_from) {
    throw Error(Errc::kSystem, "{}", "ibv_reg_mr of GPU memory: Bad address");
  }
  if (by_dma_buf) ++state.by_dma_buf;
  return std::make_unique<GpuNicRegistration>(state);
}

/// A message on its way between GPU memory and the other end, in memory of the NIC.
struct Passing {
  std::vector<std::byte> bytes;
  std::unique_ptr<Registration> registration;
  std::byte* target = nullptr;  // of a receive
};

class GpuNicRequest final : public Request {
 public:
  GpuNicRequest(std::unique_ptr<Passing> passing, std::unique_ptr<Request> inner,
                GpuNicState& state, std::deque<std::unique_ptr<Passing>>* landing,
                Registration* memory)
      : passing_(std::move(passing)),
        inner_(std::move(inner)),
        state_(state),
        landing_(landing),
        memory_(static_cast<GpuNicRegistration&>(*memory)) {
    ++memory_.users;
  }
  ~GpuNicRequest() override { --memory_.users; }
  GpuNicRequest(const GpuNicRequest&) = delete;
  GpuNicRequest& operator=(const GpuNicRequest&) = delete;
  std::optional<std::size_t> test() override {
    const std::optional<std::size_t> done = inner_->test();
    if (!done.has_value() || passing_ == nullptr || landing_ == nullptr) return done;
    passing_->bytes.resize(*done);
    ++state_.gpu_messages;
    if (state_.late) {
      landing_->push_back(std::move(passing_));
    } else {
      std::memcpy(passing_->target, passing_->bytes.data(), *done);
      passing_.reset();
    }
    return done;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return inner_->sizes(); }

 private:
  std::unique_ptr<Passing> passing_;
  std::unique_ptr<Request> inner_;  // uses it
  GpuNicState& state_;
  std::deque<std::unique_ptr<Passing>>* landing_;  // of a receive
  GpuNicRegistration& memory_;
};

// Takes two looks: who asks once and goes on has not flushed.
class GpuNicFlush final : public Request {
 public:
  GpuNicFlush(std::deque<std::unique_ptr<Passing>>& landing, bool fails)
      : landing_(landing), until_(landing.size()), fails_(fails) {}
  std::optional<std::size_t> test() override {
    if (done_) return 0;
    if (!std::exchange(looked_, true)) return std::nullopt;
    if (fails_) throw Error(Errc::kPeerLost, "{}", "a flush of GPU memory fails");
    for (; until_ > 0; --until_) {
      const Passing& message = *landing_.front();
      std::memcpy(message.target, message.bytes.data(), message.bytes.size());
      landing_.pop_front();
    }
    done_ = true;
    return 0;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return {}; }

 private:
  std::deque<std::unique_ptr<Passing>>& landing_;
  std::size_t until_;  // of those that had arrived
  bool fails_;
  bool looked_ = false;
  bool done_ = false;
};

class GpuNicSender final : public SendConnection {
 public:
  GpuNicSender(std::unique_ptr<SendConnection> inner, GpuNicState& state)
      : inner_(std::move(inner)), state_(state) {}
  bool ready() override { return inner_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    if (kind == MemoryKind::kHost) return inner_->register_memory(data, bytes, kind);
    return register_gpu(state_, ++state_.sender_registrations, state_.refuses_sender_from, false);
  }
  std::unique_ptr<Registration> register_dma_buf(void*, std::size_t,
                                                 const DmaBuf& buffer) override {
    RW_ASSERT(buffer.descriptor >= 0);
    return register_gpu(state_, ++state_.sender_registrations, state_.refuses_sender_from, true);
  }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override {
    if (!on_gpu(registration)) return inner_->send(data, bytes, tag, registration);
    auto passing = std::make_unique<Passing>();
    const auto* const from = static_cast<const std::byte*>(data);
    passing->bytes.assign(from, from + bytes);
    passing->registration =
        inner_->register_memory(passing->bytes.data(), bytes, MemoryKind::kHost);
    auto inner = inner_->send(passing->bytes.data(), bytes, tag, passing->registration.get());
    if (inner == nullptr) return nullptr;
    return std::make_unique<GpuNicRequest>(std::move(passing), std::move(inner), state_, nullptr,
                                           registration);
  }
  void more_follow(bool follow) override { inner_->more_follow(follow); }

 private:
  std::unique_ptr<SendConnection> inner_;
  GpuNicState& state_;
};

class GpuNicReceiver final : public ReceiveConnection {
 public:
  GpuNicReceiver(std::unique_ptr<ReceiveConnection> inner, GpuNicState& state)
      : inner_(std::move(inner)), state_(state) {}
  bool ready() override { return inner_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    if (kind == MemoryKind::kHost) return inner_->register_memory(data, bytes, kind);
    return register_gpu(state_, ++state_.receiver_registrations, state_.refuses_receiver_from,
                        false);
  }
  std::unique_ptr<Registration> register_dma_buf(void*, std::size_t,
                                                 const DmaBuf& buffer) override {
    RW_ASSERT(buffer.descriptor >= 0);
    return register_gpu(state_, ++state_.receiver_registrations, state_.refuses_receiver_from,
                        true);
  }
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override {
    if (!on_gpu(buffers.front().registration)) return inner_->receive(buffers);
    RW_ASSERT(buffers.size() == 1);
    ReceiveBuffer buffer = buffers.front();
    auto passing = std::make_unique<Passing>();
    passing->target = static_cast<std::byte*>(buffer.data);
    passing->bytes.resize(buffer.bytes);
    passing->registration =
        inner_->register_memory(passing->bytes.data(), buffer.bytes, MemoryKind::kHost);
    buffer.data = passing->bytes.data();
    buffer.registration = passing->registration.get();
    auto inner = inner_->receive({&buffer, 1});
    if (inner == nullptr) return nullptr;
    return std::make_unique<GpuNicRequest>(std::move(passing), std::move(inner), state_, &landing_,
                                           buffers.front().registration);
  }
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer>) override {
    const int number = ++state_.flushes;
    const int fails_from = state_.fails_flush_from;
    return std::make_unique<GpuNicFlush>(landing_, fails_from != 0 && number >= fails_from);
  }

 private:
  std::unique_ptr<ReceiveConnection> inner_;
  GpuNicState& state_;
  std::deque<std::unique_ptr<Passing>> landing_;
};

class GpuNicListener final : public Listener {
 public:
  GpuNicListener(std::unique_ptr<Listener> inner, GpuNicState& state)
      : inner_(std::move(inner)), state_(state) {}
  [[nodiscard]] const Handle& handle() const override { return inner_->handle(); }
  std::unique_ptr<ReceiveConnection> accept() override {
    auto made = inner_->accept();
    return made ? std::make_unique<GpuNicReceiver>(std::move(made), state_) : nullptr;
  }

 private:
  std::unique_ptr<Listener> inner_;
  GpuNicState& state_;
};

class GpuNicConnector final : public Connector {
 public:
  GpuNicConnector(std::unique_ptr<Connector> inner, GpuNicState& state)
      : inner_(std::move(inner)), state_(state) {}
  std::unique_ptr<SendConnection> poll() override {
    auto made = inner_->poll();
    return made ? std::make_unique<GpuNicSender>(std::move(made), state_) : nullptr;
  }

 private:
  std::unique_ptr<Connector> inner_;
  GpuNicState& state_;
};

}  // namespace detail

class GpuNic final : public Transport {
 public:
  /// `state` outlives this.
  GpuNic(std::unique_ptr<Transport> inner, GpuNicState& state)
      : inner_(std::move(inner)), state_(state) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int num_devices() const override { return inner_->num_devices(); }
  [[nodiscard]] DeviceProperties properties(int device) const override {
    DeviceProperties properties = inner_->properties(device);
    if (!state_.takes_gpu_memory) return properties;
    properties.memory_kinds |= static_cast<unsigned>(MemoryKind::kCuda);
    if (state_.takes_dma_buf) {
      properties.memory_kinds |= static_cast<unsigned>(MemoryKind::kDmaBuf);
    }
    properties.gpu_memory_by_cuda = state_.needs_cuda;
    properties.gpu_memory_mapped_later = state_.maps_later;
    return properties;
  }
  std::unique_ptr<Listener> listen(int device) override {
    return std::make_unique<detail::GpuNicListener>(inner_->listen(device), state_);
  }
  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    return std::make_unique<detail::GpuNicConnector>(inner_->connect(device, handle), state_);
  }

 private:
  std::unique_ptr<Transport> inner_;
  GpuNicState& state_;
};

}  // namespace ropewalk::transport::testing

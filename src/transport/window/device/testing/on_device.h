// A transport whose messages go through GPU memory, for tests that know host memory only: what is
// sent is copied to a GPU first, and what arrives on one is copied back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::window::testing {

/// Where messages lie at one end.
enum class Memory { kHost, kAllocator, kVirtual };

/// The GPUs of a test.
struct TestGpus {
  explicit TestGpus(const std::string& library) : cuda(library), gpus(cuda) {}
  CudaApi cuda;
  Gpus gpus;
};

/// Device memory with guards around the part in use.
class GuardedBuffer {
 public:
  template <typename Connection>
  GuardedBuffer(Gpu& gpu, std::size_t room, Memory memory, Connection& connection)
      : gpu_(gpu),
        room_(room),
        // Blocks of its own, which an adapter may be given.
        buffer_(gpu, (room + 2 * kGuard + kMaxShift + kBlock - 1) / kBlock * kBlock,
                memory == Memory::kVirtual ? DeviceBuffer::From::kVirtualMemory
                                           : DeviceBuffer::From::kAllocator),
        registration_(connection.register_memory(buffer_.pointer(), room + 2 * kGuard + kMaxShift,
                                                 MemoryKind::kCuda)) {
    fill_with(0, kFill, room + 2 * kGuard);
  }

  [[nodiscard]] std::size_t room() const { return room_; }
  [[nodiscard]] Registration* registration() const { return registration_.get(); }
  /// Device address of the part in use; it moves, so that all alignments come.
  [[nodiscard]] std::byte* data() const {
    return static_cast<std::byte*>(buffer_.pointer()) + kGuard + shift_;
  }
  void fill(const void* host, std::size_t bytes) {
    shift_ = (shift_ + 1) % kMaxShift;
    fill_with(shift_, kFill, kGuard);
    if (bytes > 0) gpu_.fill(buffer_.data() + shift_ + kGuard, host, bytes);
    fill_with(shift_ + kGuard + bytes, kFill, kGuard);
  }
  /// Fills the part in use, all of the room, with one value.
  void fill(std::byte value) {
    shift_ = (shift_ + 1) % kMaxShift;
    fill_with(shift_ + kGuard, value, room_);
  }
  void fetch(void* host, std::size_t bytes) {
    EXPECT_TRUE(untouched(shift_)) << "before the buffer";
    EXPECT_TRUE(untouched(shift_ + kGuard + bytes)) << "after the buffer";
    if (bytes > 0) gpu_.fetch(host, buffer_.data() + shift_ + kGuard, bytes);
  }

 private:
  // Piece by piece: a copy of the whole, a new one for each message, took most of the tests' time.
  void fill_with(std::size_t at, std::byte value, std::size_t bytes) {
    const std::vector<std::byte> piece(std::min<std::size_t>(bytes, 64 << 10), value);
    for (std::size_t done = 0; done < bytes; done += piece.size()) {
      gpu_.fill(buffer_.data() + at + done, piece.data(), std::min(piece.size(), bytes - done));
    }
  }
  [[nodiscard]] bool untouched(std::size_t guard) {
    std::array<std::byte, kGuard> found{};
    gpu_.fetch(found.data(), buffer_.data() + guard, found.size());
    return std::all_of(found.begin(), found.end(), [](std::byte byte) { return byte == kFill; });
  }

  static constexpr std::size_t kGuard = 256;
  static constexpr std::size_t kMaxShift = 16;
  static constexpr std::size_t kBlock = std::size_t{2} << 20;
  static constexpr std::byte kFill{0xd7};
  Gpu& gpu_;
  const std::size_t room_;
  std::size_t shift_ = 0;
  DeviceBuffer buffer_;
  std::unique_ptr<Registration> registration_;
};

/// Buffers of one connection, used again.
template <typename Connection>
class BufferPool {
 public:
  BufferPool(Gpu& gpu, Memory memory, Connection& connection)
      : gpu_(gpu), memory_(memory), connection_(connection) {}
  std::unique_ptr<GuardedBuffer> take(std::size_t bytes) {
    const std::size_t room = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& buffer) { return buffer->room() == room; });
    if (found == free_.end()) {
      return std::make_unique<GuardedBuffer>(gpu_, room, memory_, connection_);
    }
    std::unique_ptr<GuardedBuffer> taken = std::move(*found);
    free_.erase(found);
    return taken;
  }
  void give(std::unique_ptr<GuardedBuffer> buffer) {
    // Whoever still reads it reads this.
    buffer->fill(std::byte{0xdd});
    free_.push_back(std::move(buffer));
  }

 private:
  Gpu& gpu_;
  const Memory memory_;
  Connection& connection_;
  std::vector<std::unique_ptr<GuardedBuffer>> free_;
};

template <typename Connection>
class OnDeviceRequest final : public Request {
 public:
  struct Part {
    std::unique_ptr<GuardedBuffer> buffer;
    void* host = nullptr;  // to copy back to; null for a send
    std::size_t bytes = 0;
  };
  OnDeviceRequest(std::unique_ptr<Request> inner, std::vector<Part> parts,
                  BufferPool<Connection>& pool)
      : parts_(std::move(parts)), pool_(pool), inner_(std::move(inner)) {}
  OnDeviceRequest(const OnDeviceRequest&) = delete;
  OnDeviceRequest& operator=(const OnDeviceRequest&) = delete;
  ~OnDeviceRequest() override {
    inner_.reset();
    // The peer's copy engine may still read cancelled messages; freeing the memory waits for that.
    if (!fetched_) return;
    for (Part& part : parts_) pool_.give(std::move(part.buffer));
  }
  std::optional<std::size_t> test() override {
    const std::optional<std::size_t> done = inner_->test();
    if (done && !std::exchange(fetched_, true)) {
      for (Part& part : parts_) {
        if (part.host != nullptr) part.buffer->fetch(part.host, part.bytes);
      }
    }
    return done;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return inner_->sizes(); }

 private:
  std::vector<Part> parts_;
  BufferPool<Connection>& pool_;
  bool fetched_ = false;
  std::unique_ptr<Request> inner_;
};

class OnDeviceSender final : public SendConnection {
 public:
  OnDeviceSender(std::unique_ptr<SendConnection> inner, Gpu& gpu, Memory memory)
      : inner_(std::move(inner)), pool_(gpu, memory, *inner_) {}
  bool ready() override { return inner_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                 const DmaBuf& buffer) override {
    return inner_->register_dma_buf(data, bytes, buffer);
  }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override {
    if (data == nullptr && bytes > 0) return inner_->send(data, bytes, tag, registration);
    std::vector<OnDeviceRequest<SendConnection>::Part> parts(1);
    parts[0].buffer = pool_.take(bytes);
    parts[0].buffer->fill(data, bytes);
    GuardedBuffer& buffer = *parts[0].buffer;
    std::unique_ptr<Request> started;
    try {
      started = inner_->send(buffer.data(), bytes, tag, buffer.registration());
    } catch (...) {
      pool_.give(std::move(parts[0].buffer));
      throw;
    }
    if (!started) {
      pool_.give(std::move(parts[0].buffer));
      return nullptr;
    }
    return std::make_unique<OnDeviceRequest<SendConnection>>(std::move(started), std::move(parts),
                                                             pool_);
  }

 private:
  std::unique_ptr<SendConnection> inner_;
  BufferPool<SendConnection> pool_;  // goes before the connection
};

class OnDeviceReceiver final : public ReceiveConnection {
 public:
  OnDeviceReceiver(std::unique_ptr<ReceiveConnection> inner, Gpu& gpu, Memory memory)
      : inner_(std::move(inner)), pool_(gpu, memory, *inner_) {}
  bool ready() override { return inner_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                 const DmaBuf& buffer) override {
    return inner_->register_dma_buf(data, bytes, buffer);
  }
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override {
    const bool bad = std::any_of(buffers.begin(), buffers.end(), [](const ReceiveBuffer& buffer) {
      return buffer.data == nullptr && buffer.bytes > 0;
    });
    if (bad || buffers.empty() || buffers.size() > 8) return inner_->receive(buffers);
    std::vector<OnDeviceRequest<ReceiveConnection>::Part> parts(buffers.size());
    std::vector<ReceiveBuffer> on_device(buffers.begin(), buffers.end());
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      parts[i].buffer = pool_.take(buffers[i].bytes);
      parts[i].buffer->fill(buffers[i].data, buffers[i].bytes);
      parts[i].host = buffers[i].data;
      parts[i].bytes = buffers[i].bytes;
      on_device[i].data = parts[i].buffer->data();
      on_device[i].registration = parts[i].buffer->registration();
    }
    std::unique_ptr<Request> started = inner_->receive(on_device);
    if (!started) {
      for (auto& part : parts) pool_.give(std::move(part.buffer));
      return nullptr;
    }
    return std::make_unique<OnDeviceRequest<ReceiveConnection>>(std::move(started),
                                                                std::move(parts), pool_);
  }
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override {
    return inner_->flush(buffers);
  }

 private:
  std::unique_ptr<ReceiveConnection> inner_;
  BufferPool<ReceiveConnection> pool_;
};

/// Senders' messages lie on the first GPU, receivers' on the second where there is one.
class OnDevice final : public Transport {
 public:
  OnDevice(std::unique_ptr<Transport> inner, const std::string& library, Memory sends,
           Memory receives)
      : gpus_(std::make_unique<TestGpus>(library)),
        sends_(sends),
        receives_(receives),
        inner_(std::move(inner)) {}
  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] int num_devices() const override { return inner_->num_devices(); }
  [[nodiscard]] DeviceProperties properties(int device) const override {
    return inner_->properties(device);
  }
  std::unique_ptr<Listener> listen(int device) override {
    class DeviceListener final : public Listener {
     public:
      DeviceListener(std::unique_ptr<Listener> listener, Gpu& gpu, Memory memory)
          : listener_(std::move(listener)), gpu_(gpu), memory_(memory) {}
      [[nodiscard]] const Handle& handle() const override { return listener_->handle(); }
      std::unique_ptr<ReceiveConnection> accept() override {
        auto made = listener_->accept();
        if (!made || memory_ == Memory::kHost) return made;
        return std::make_unique<OnDeviceReceiver>(std::move(made), gpu_, memory_);
      }

     private:
      std::unique_ptr<Listener> listener_;
      Gpu& gpu_;
      const Memory memory_;
    };
    auto made = inner_->listen(device);
    return std::make_unique<DeviceListener>(std::move(made), gpus_->gpus.at(last_gpu()), receives_);
  }
  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    class DeviceConnector final : public Connector {
     public:
      DeviceConnector(std::unique_ptr<Connector> connector, Gpu& gpu, Memory memory)
          : connector_(std::move(connector)), gpu_(gpu), memory_(memory) {}
      std::unique_ptr<SendConnection> poll() override {
        auto made = connector_->poll();
        if (!made || memory_ == Memory::kHost) return made;
        return std::make_unique<OnDeviceSender>(std::move(made), gpu_, memory_);
      }

     private:
      std::unique_ptr<Connector> connector_;
      Gpu& gpu_;
      const Memory memory_;
    };
    auto made = inner_->connect(device, handle);
    return std::make_unique<DeviceConnector>(std::move(made), gpus_->gpus.at(0), sends_);
  }

 private:
  [[nodiscard]] int last_gpu() const { return std::min(1, gpus_->gpus.count() - 1); }
  std::unique_ptr<TestGpus> gpus_;
  const Memory sends_;
  const Memory receives_;
  std::unique_ptr<Transport> inner_;
};

}  // namespace ropewalk::transport::window::testing
